"""A run is safe from setups and from other local users of its hosts."""

import json
import re
import shlex
import shutil
import subprocess
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cluster.brought_python import VERSION
from tests.cluster.cluster import TWO, Cluster, no_rank_is_left
from tests.cluster.control import ADDRESS, HEAD, NAMES, OTHER
from tests.cluster.hosts.listening import CLOSED, opened_ports
from tests.programs import CONTROL

LIMIT = 120
WAITS = """\
import os
import pathlib
import time

import torch
import torch.distributed as dist

dist.init_process_group(os.environ["FTCLUSTER_BACKEND"])
dist.all_reduce(torch.ones(1))
print("ranks have met", flush=True)
while not pathlib.Path("go").exists():
    time.sleep(0.2)
import torch.distributed.checkpoint  # of the run's stack, wherever the link leads by now
dist.all_reduce(torch.ones(1))
print(torch.distributed.checkpoint.__file__, flush=True)
"""
# for a rollback, this copy is another stack that was set up earlier
PREVIOUS = "mkdir -p {0} && touch {0}/.complete && ln -sfn {0} /opt/ftcluster/previous"
LISTENING = """\
tables = (open(f"/proc/net/{name}").readlines()[1:] for name in ("tcp", "tcp6"))
lines = [line.split() for table in tables for line in table]
print(sorted({int(words[1].split(":")[1], 16) for words in lines if words[3] == "0A"}))
"""
CALL = """\
import socket, sys
for place in sys.argv[1:]:
    address, port = place.split(":")
    try:
        socket.create_connection((address, int(port)), timeout=1).close()
        print(place, "in")
    except OSError as error:
        print(place, type(error).__name__)
"""


@dataclass(frozen=True)
class Live:
    """A run of two ranks on two hosts that waits for `let_it_end`."""

    cluster: Cluster
    process: "subprocess.Popen[str]"
    opened: dict[str, set[int]]
    run: str
    stack: str

    def on(self, host: str, command: str) -> str:
        return self.cluster.control.shell(host, command)

    def let_it_end(self) -> str:
        for name in (HEAD, OTHER):
            self.on(name, f"touch /opt/ftcluster/runs/{self.run}/script/go")
        out, said = self.process.communicate(timeout=LIMIT)
        assert self.process.returncode == 0, said
        return out


@pytest.fixture(scope="module")
def live(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    folder = tmp_path_factory.mktemp("waits")
    (folder / "waits.py").write_text(WAITS)
    control = cluster.control
    with opened_ports(control, (HEAD, OTHER)) as opened:
        process = control.start("run", *TWO, "--", str(folder / "waits.py"))
        assert process.stdout
        met = process.stdout.readline()
    try:
        assert met == "ranks have met\n"
        found = control.bed.exec_(HEAD, "sh", "-c", "ls -t /opt/ftcluster/runs | head -1; "
                                  "readlink /opt/ftcluster/current", check=True)  # fmt: skip
        yield Live(cluster, process, opened, *found.stdout.split())
    finally:
        if process.poll() is None:
            process.terminate()
            process.communicate(timeout=LIMIT)


def test_other_local_users_do_not_get_at_the_rendezvous(live: Live) -> None:
    ports = json.loads(live.on(HEAD, f"python3 -c {shlex.quote(LISTENING)}"))
    ours = [port for port in ports if 29550 <= port <= 29799]
    assert len(ours) >= 2, ports  # the store of torch, and mpirun
    near = [f"{address}:{port}" for address in ("127.0.0.1", ADDRESS[HEAD]) for port in ours]
    far = [f"{ADDRESS[HEAD]}:{port}" for port in ours]
    for name in (HEAD, OTHER):
        assert live.opened[name], f"nothing was heard on {name}"
        assert live.opened[name] <= CLOSED, sorted(live.opened[name] - CLOSED)
    for host, places in ((HEAD, near), (OTHER, far)):
        for user, answer in (("nobody", "TimeoutError"), ("ftcluster", "in")):
            argv = ("runuser", "-u", user, "--", "python3", "-c", CALL, *places)
            said = live.cluster.control.bed.exec_(host, *argv, check=True).stdout.splitlines()
            if user == "nobody":
                assert said == [f"{place} {answer}" for place in places], host
            else:  # mpirun listens only until the ranks have started
                assert any(line.endswith(answer) for line in said), (host, said)
    # other ports belong to other programs, for example torch's own ports
    live.on(HEAD, "runuser -u nobody -- python3 -c 'import socket; "
            's = socket.create_server(("", 29500)); '
            "socket.create_connection((\"127.0.0.1\", 29500))'")  # fmt: skip


def test_a_run_keeps_its_stack_until_it_has_ended(live: Live, tmp_path: Path) -> None:
    cluster, control = live.cluster, live.cluster.control
    # the same package in another file
    [wheel] = CONTROL.parent.rglob("node_agent/files/ftcluster_train-*.whl")
    other = Path(shutil.copy(wheel, tmp_path))
    with zipfile.ZipFile(other, "a") as archive:
        archive.comment = b"other"
    before = control.snapshots()
    change = ("-e", f"node_agent_wheel={other}")
    for verb, words in (("setup", change), ("teardown", ())):
        refused = control.run(verb, cluster.inventory, *words)
        assert refused.returncode == 1, refused.stdout
        line = rf"^  {HEAD}, {OTHER}: .*{live.run}.*{Path(live.stack).name}"
        assert re.search(line, refused.stderr, re.MULTILINE), refused.stderr
        assert "nothing was changed" in refused.stderr
    assert control.snapshots() == before
    for name in (HEAD, OTHER):
        assert live.on(name, "ls -A /opt/ftcluster").count(".setup") == 0
    # a rollback only moves the link
    previous = "/opt/ftcluster/stacks/native-0"
    for name in NAMES:
        live.on(name, PREVIOUS.format(previous))
    back = control.run("setup", cluster.inventory, "--rollback")
    assert back.returncode == 0, back.stderr
    assert live.on(HEAD, "readlink /opt/ftcluster/current").strip() == previous
    late = f"{live.stack}/lib/python{VERSION}/site-packages/torch/distributed/checkpoint"
    assert live.let_it_end() == f"{late}/__init__.py\n"
    no_rank_is_left(cluster)
    for name in NAMES:
        live.on(name, f"cd /opt/ftcluster; ln -sfn {live.stack} current; rm -r {previous} previous")
    free = control.run("setup", cluster.inventory, "--tags", "stack", "--check", "--limit", HEAD,
                       *change)  # fmt: skip
    assert free.returncode == 0, free.stderr
