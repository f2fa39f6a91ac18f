"""Secrets passed in every possible way to a script and a training, and who can read their traces.

The other user is `nobody` on the hosts. All processes of the hosts are also processes of this
machine, so its /proc shows everything that any user of the hosts could see.
"""

import hashlib
import json
import os
import re
import secrets
import shlex
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pexpect
import pytest

from tests.cluster.cluster import TWO, Cluster
from tests.cluster.control import HEAD, NAMES, OTHER
from tests.cluster.rows import pair, write_rows
from tests.programs import HANG_SECONDS, ROOT

HUB = ROOT / "tests/cluster/scripts/hub.py"
HUB_PORT = 8080
# Folders of a host in which a run could leave files, except the stacks, which setup installs.
PLACES = "/opt/ftcluster/*/ /tmp /var /home /root /run /dev/shm /etc"
STACKS = "--exclude-dir=stacks --exclude-dir=current --exclude-dir=dpkg --exclude-dir=apt"
TELL = """\
import hashlib, os, sys, time
from huggingface_hub import get_token

path = os.environ["HF_TOKEN_PATH"]
print(
    f"rank {os.environ['RANK']}:",
    hashlib.sha256(get_token().encode()).hexdigest(),
    oct(os.stat(path).st_mode & 0o777),
    hashlib.sha256(sys.argv[1].encode()).hexdigest(),
    hashlib.sha256(os.environ.get("MLFLOW_TRACKING_TOKEN", "").encode()).hexdigest(),
    flush=True,
)
time.sleep(5)
"""
# watches the packets between the hosts; prints only the words that it has seen
SNIFF = """\
import select, socket, sys
wanted = [word.encode() for word in sys.stdin.readline().split()]
socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.ntohs(3))
found = set()
print("ready", flush=True)
while True:
    if select.select([socket, sys.stdin], [], [])[0] == [sys.stdin]:
        break
    frame = socket.recv(1 << 17)
    found |= {word for word in wanted if word in frame}
print(*(word.decode() for word in found))
"""


# commands that change the hosts for the test
CHANGED = "etc/shadow etc/sudoers.d/ops etc/environment"
KEEP = f"tar -C / -cpf /root/before.tar {CHANGED}"
PUT_BACK = "tar -C / -xpf /root/before.tar; rm /root/before.tar"


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class Secrets:
    """A secret for each way to pass secrets."""

    hub: str = field(default_factory=lambda: f"hf_{secrets.token_hex(12)}")
    argument: str = field(default_factory=lambda: f"argument{secrets.token_hex(12)}")
    data: str = field(default_factory=lambda: f"data{secrets.token_hex(12)}")
    inventory: str = field(default_factory=lambda: f"inventory{secrets.token_hex(12)}")
    become: str = field(default_factory=lambda: f"become{secrets.token_hex(12)}")
    cloud: str = field(default_factory=lambda: f"cloud{secrets.token_hex(12)}")
    head: str = field(default_factory=lambda: f"head{secrets.token_hex(12)}")

    def named(self, text: str) -> set[str]:
        """Return the secrets that a text contains."""
        return {door for door, secret in vars(self).items() if secret in text}


class Processes(threading.Thread):
    """A watcher of the arguments of all processes.

    Attributes:
        telling: ways to pass secrets whose secret was found.
        seen: the programs and modules that ran, which prove what was observed.
        open_folders: folders of ftcluster in memory that others could enter.
    """

    MARKS = (
        "ansible-playbook", "ftcluster_train.engine.prepare", "ftcluster_train.host.supervisor",
        "mpirun", "hydra_pmi_proxy", "hydra_bstrap_proxy", "ftcluster_train.engine.rank", "tell.py",
    )  # fmt: skip

    def __init__(self, planted: Secrets) -> None:
        super().__init__(daemon=True)
        self.telling: dict[str, set[str]] = {}
        self.seen: set[str] = set()
        self.open_folders: set[str] = set()
        self._planted = planted
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.wait(0.05):
            for process in Path("/proc").glob("[0-9]*"):
                try:
                    words = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
                except OSError:
                    continue
                text = " ".join(words)
                self.seen |= {mark for mark in self.MARKS if mark in text}
                if doors := self._planted.named(text):
                    self.telling[text] = doors
            for folder in Path("/dev/shm").glob("ftcluster-*"):
                try:
                    if folder.stat().st_mode & 0o077:
                        self.open_folders.add(str(folder))
                except OSError:
                    continue

    def stop(self) -> None:
        self._over.set()
        self.join()


@dataclass(frozen=True)
class Left:
    """The remains of two runs, and all observations during the runs."""

    cluster: Cluster
    planted: Secrets
    processes: Processes
    on_the_wire: set[str]
    said: str
    training: dict[str, object]
    refused: "subprocess.CompletedProcess[str]"
    tried: dict[str, str]


def as_root(cluster: Cluster, host: str, command: str) -> str:
    return cluster.control.bed.exec_(host, "sh", "-c", command, timeout=HANG_SECONDS).stdout


def as_nobody(cluster: Cluster, host: str, command: str) -> str:
    return as_root(cluster, host, f"cd /; runuser -u nobody -- sh -c {shlex.quote(command)}")


@pytest.fixture(scope="module")
def planted(cluster: Cluster) -> Iterator[Secrets]:
    """Put secrets into the hosts and the inventory; restore both afterwards."""
    planted = Secrets()
    inventory = Path(cluster.inventory)
    before = inventory.read_text()
    inventory.write_text(f"{before}\n[all:vars]\nsite_password={planted.inventory}\n")
    for name in NAMES:  # sudo asks for a password from here on
        as_root(cluster, name, f"{KEEP}; echo ops:{planted.become} | chpasswd; "
                "sed -i s/NOPASSWD:// /etc/sudoers.d/ops")  # fmt: skip
    as_root(cluster, HEAD, f"echo MLFLOW_TRACKING_TOKEN={planted.head} >> /etc/environment; "
            "echo Defaults env_file=/etc/environment >> /etc/sudoers.d/ops")  # fmt: skip
    yield planted
    inventory.write_text(before)
    for name in NAMES:
        as_root(cluster, name, PUT_BACK)


@pytest.fixture(scope="module")
def left(cluster: Cluster, planted: Secrets, tmp_path_factory: pytest.TempPathFactory) -> Left:
    control, folder = cluster.control, tmp_path_factory.mktemp("planted")
    (folder / "project").mkdir()
    (folder / "project/tell.py").write_text(TELL)
    data = write_rows(folder / "data", pair, train=64, validation=64)
    rows = data / "train.jsonl"
    rows.write_text(rows.read_text().replace('"number 7"', f'"number {planted.data}"'))
    rows.chmod(0o600)
    password = folder / "password"
    password.touch(mode=0o600)
    password.write_text(planted.become)
    environment = {"HF_TOKEN": planted.hub, "AWS_SECRET_ACCESS_KEY": planted.cloud}
    wire = [*vars(planted).values(), "I_MPI_PIN"]
    sniffer = listener(control.bed.run_argv(["python3", "-c", SNIFF]), f"{' '.join(wire)}\n")
    words = ["python3", "-c", HUB.read_text(), str(HUB_PORT), sha256(planted.hub)]
    hubs = [listener(control.bed.exec_argv(name, words)) for name in (HEAD, OTHER)]
    processes = Processes(planted)
    processes.start()
    try:
        said, tried = run_script(cluster, planted, folder / "project", environment)
        recipe = folder / "tiny.yml"
        recipe.write_text(
            f"task: text-classification\nmodel: lab/gated-{secrets.token_hex(4)}\ndata: {data}\n"
            "from_scratch: true\ntext_columns: [sentence1, sentence2]\nbatch_size: 8\n"
            "training: {max_steps: 2}\n"
        )
        endpoint = {"HF_ENDPOINT": f"http://127.0.0.1:{HUB_PORT}"}
        prefix = {"PYTHONPYCACHEPREFIX": "/opt/ftcluster/cache"}
        command = (
            "train", str(recipe), *TWO, "--json", "--become-password-file", str(password),
            "-e", json.dumps({"train_environment": prefix | endpoint}),
        )  # fmt: skip
        refused = control.run(*command, **environment)
        trained = control.run(*command, "--hf-token", **environment)
    finally:
        processes.stop()
        on_the_wire, _ = sniffer.communicate("end\n", timeout=HANG_SECONDS)
        for hub in hubs:
            hub.communicate("end\n", timeout=HANG_SECONDS)
    assert trained.returncode == 0, trained.stderr
    training = json.loads(trained.stdout)
    return Left(cluster, planted, processes, set(on_the_wire.split()), said, training, refused,
                tried)  # fmt: skip


def listener(argv: list[str], first: str = "") -> "subprocess.Popen[str]":
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(first)
    process.stdin.flush()
    assert process.stdout.readline() == "ready\n"
    return process


def run_script(
    cluster: Cluster, planted: Secrets, folder: Path, environment: dict[str, str]
) -> tuple[str, dict[str, str]]:
    """Run a script and type the password; return the output and what `nobody` could read."""
    control = cluster.control
    words = ["run", "--hf-token", "-K", "--ranks-per-host", "1", "--", "tell.py", planted.argument]
    argv = control.bed.run_argv([str(ROOT / ".venv/bin/ftcluster"), *words])
    process = pexpect.spawn(
        argv[0], argv[1:], env={**os.environ, **control.env, **environment}, cwd=str(folder),
        timeout=HANG_SECONDS, encoding="utf-8",
    )  # fmt: skip
    process.expect("BECOME password: ")
    process.sendline(planted.become)
    process.expect(r"rank 0: .*\n")
    said = process.after
    tried = {
        name: as_nobody(cluster, name, "cat /proc/[0-9]*/environ /opt/ftcluster/runs/*/* 2>&1")
        for name in (HEAD, OTHER)
    }
    process.expect(pexpect.EOF)
    process.close()
    assert process.exitstatus == 0, process.before
    return said + process.before, tried


def test_ranks_have_the_users_token_and_credentials_of_a_host_stay_there(left: Left) -> None:
    folder = re.findall(rf"{HEAD}:(\S+/logs)", left.said)[-1]
    logs = as_root(left.cluster, HEAD, f"cat {folder}/rank-*.log")
    planted, nothing = left.planted, sha256("")
    for rank in range(len(NAMES)):
        own = sha256(planted.head) if rank == 0 else nothing
        line = f"rank {rank}: {sha256(planted.hub)} 0o600 {sha256(planted.argument)} {own}\n"
        assert line in logs
    for name in NAMES:
        assert as_root(left.cluster, name, "find / -xdev -name hub_token") == ""


def test_a_gated_model_needs_that_the_user_gives_the_token(left: Left) -> None:
    assert left.training["state"] == "done"
    assert left.refused.returncode == 1
    assert "nor available on the Hugging Face Hub" in left.refused.stderr
    assert "for private or gated repositories use --hf-token" in left.refused.stderr


def test_no_secret_is_an_argument_of_a_process(left: Left) -> None:
    processes = left.processes
    assert processes.seen == set(processes.MARKS), "else little was looked at"
    own = {text: doors for text, doors in processes.telling.items() if "tell.py" in text}
    # processes of the command that the user typed, and of the user's program
    assert {" ".join(sorted(doors)) for doors in own.values()} == {"argument"}
    assert all(
        re.search(r"bin/ftcluster run |^/opt/ftcluster/\S+/python tell\.py ", text) for text in own
    ), own
    assert processes.telling.keys() == own.keys()
    assert processes.open_folders == set()


def test_no_secret_is_sent_unencrypted_between_the_hosts(left: Left) -> None:
    assert left.on_the_wire == {"I_MPI_PIN"}  # the environment that mpirun really sends


def test_no_secret_is_shown(left: Left) -> None:
    assert left.planted.named(left.said + left.refused.stderr) == set()


def test_hosts_keep_of_the_secrets_what_they_need_and_only_for_the_account(left: Left) -> None:
    planted, cluster = left.planted, left.cluster
    words = " ".join(f"-e {secret}" for door, secret in vars(planted).items() if door != "head")
    for name in NAMES:
        grep = f"LC_ALL=C grep -rlaF {STACKS} {words} {PLACES} 2>/dev/null"
        kept = set(as_root(cluster, name, grep).split())
        jobs = {path for path in kept if re.fullmatch(r"\S*/runs/tell-[^/]+/job\.json", path)}
        data = {path for path in kept if re.fullmatch(r"\S*/data/data-[^/]+/train\.jsonl", path)}
        assert (len(jobs), len(data)) == (1, 0 if name == NAMES[2] else 1), kept
        assert kept == jobs | data
        opened = f"cat {' '.join(map(shlex.quote, kept))} | wc -c"
        assert as_nobody(cluster, name, f"{opened} 2>/dev/null").strip() == "0"
        readable = "find /opt/ftcluster -path '*/stacks' -prune -o -type f -readable -print"
        # the record that all control nodes share: drained hosts, measurements, tunings
        record = "/opt/ftcluster/cluster.json\n" if name == HEAD else ""
        assert as_nobody(cluster, name, f"{readable} 2>/dev/null") == record
        journal = as_root(cluster, name, "journalctl --no-pager --all")
        assert "Invoked with" in journal, "else modules have said nothing at all"
        assert planted.named(journal) == set()
    for tried in left.tried.values():
        assert planted.named(tried) == set()
        assert "Permission denied" in tried
    models = as_root(
        cluster, HEAD, f"find {Path(str(left.training['model'])).parent} -printf '%m %p\\n'"
    )
    assert "/model/model.safetensors" in models
    assert [line for line in models.splitlines() if int(line.split()[0], 8) & 0o027] == []
    tokens = as_root(cluster, OTHER, "find /opt/ftcluster/cache/tokens -type f -printf '%m\\n'")
    assert set(tokens.split()) == {"600"}


def test_the_control_node_keeps_only_what_the_user_typed_and_for_the_user(left: Left) -> None:
    planted, state = left.planted, left.cluster.control.folder / "state"
    kept: dict[str, set[str]] = {}
    for place in (state, Path("/dev/shm"), Path.home() / ".ansible"):
        for path in place.rglob("*"):
            if path.is_file() and (doors := planted.named(path.read_bytes().decode("latin-1"))):
                kept[str(path)] = doors
    [(run, doors)] = kept.items()
    assert run.endswith("/run.json")
    assert doors == {"argument"}
    assert (state / "ftcluster").stat().st_mode & 0o777 == 0o700
    assert all(not path.stat().st_mode & 0o077 for path in state.rglob("*.json*"))
