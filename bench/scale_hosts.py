"""How the start of a run grows with its hosts: light test hosts with real SSH and mpirun.

    sudo .venv-dev/bin/python -m bench.scale_hosts --results FILE [HOSTS ...]

from the repository's root; adds to the FILE of `bench.scale`. The real supervisor on the first host
takes the leases of all over SSH and has mpirun start a rank on each, which only reports its steps.
Measured are the leases, the start, how long it takes to name a host that is cut off, to start the
ranks on all hosts once it is back, and to stop the run. The hosts share this machine's cores.
"""

import argparse
import json
import os
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.runs import ROOT, cpu, write
from ftcluster_common.launch import (
    GUARD_FILE,
    LAUNCH_FILE,
    MPI_VARIABLES,
    Launch,
    RankCores,
    RankHost,
    mesh_variables,
)
from tests.rights import HOST_PACKAGES
from tests.testbed import Testbed, host
from tests.testbed.access import key, known_hosts
from tests.testbed.settings import OPERATOR, Node, Settings

COUNTS = (4, 8, 16, 32)
LIMIT_SECONDS = 240.0
HOME = f"/home/{OPERATOR}"
AS_OPERATOR = ("runuser", "-u", OPERATOR, "--")
MPI = ("hydra_bstrap_proxy", "hydra_pmi_proxy", "mpiexec.hydra", "mpirun")
RANK = """
import os, time
from ftcluster_train.io.rank_status import report
print("began", time.monotonic(), flush=True)
step = 0
while True:
    step += 1
    report(step, "forward")
    time.sleep(1)
"""
SSH_CONFIG = f"""
Host *
  User {OPERATOR}
  IdentityFile {HOME}/mesh
  UserKnownHostsFile {HOME}/mesh_hosts
  ServerAliveInterval 5
  ServerAliveCountMax 2
"""


def make_stack(folder: Path) -> Path:
    """A stack without torch, of the hosts' own Python: the hosts' package, and mpirun."""
    stack = folder / "stack"
    (stack / "bin").mkdir(parents=True)
    for name in MPI:
        shutil.copy(ROOT / ".venv-engine/bin" / name, stack / "bin")
    for name in ("python", "python3"):
        (stack / "bin" / name).symlink_to("/usr/bin/python3")
    (stack / "pyvenv.cfg").write_text("home = /usr/bin\ninclude-system-site-packages = false\n")
    packages = stack / "lib/python3.11/site-packages"
    for package in ("train/ftcluster_train", "common/ftcluster_common"):
        shutil.copytree(
            ROOT / package, packages / Path(package).name,
            ignore=shutil.ignore_patterns("__pycache__", "*.so"),
        )  # fmt: skip
    subprocess.run([sys.executable, "-m", "compileall", "-q", packages], check=True)
    return stack


class Run:
    """A run of the real supervisor on the first of some hosts."""

    def __init__(self, bed: Testbed, stack: Path, nodes: list[Node]) -> None:
        self.bed, self.nodes = bed, nodes
        self.folder = f"{HOME}/runs/scale-{len(nodes)}-{secrets.token_hex(2)}"
        config = f"{HOME}/ssh_config"
        variables = {
            "FTCLUSTER_RUN": Path(self.folder).name,
            **MPI_VARIABLES,
            **mesh_variables(config, "eth0"),
        }
        hosts = tuple(RankHost(one.name, one.address, (RankCores("0", 1),)) for one in nodes)
        launch = Launch(
            self.folder, ("-c", RANK), variables, hosts, config, str(stack), max_restarts=9
        )
        secret = f"{secrets.token_hex(16)}\n"
        settings = bed.wanted.recorded()
        assert settings
        head = {
            f"{HOME}/mesh": key(settings).read_text(),
            f"{HOME}/mesh_hosts": known_hosts(settings).read_text(),
            config: SSH_CONFIG,
            f"{self.folder}/{LAUNCH_FILE}": json.dumps(launch.to_dict()),
        }
        for node in nodes:
            self.put(
                node, {f"{self.folder}/{GUARD_FILE}": secret, **(head if node is nodes[0] else {})}
            )
        self.began = time.time()
        self.process = subprocess.Popen(
            bed.exec_argv(
                nodes[0].name,
                [*AS_OPERATOR, "env", f"HOME={HOME}", f"{stack}/bin/python", "-B", "-m",
                 "ftcluster_train.host.supervisor", "supervise", self.folder],
            )
        )  # fmt: skip

    def put(self, node: Node, files: dict[str, str]) -> None:
        """Write files of the operator, which nobody else may read."""
        for path, text in files.items():
            script = f"umask 077 && mkdir -p {Path(path).parent} && cat > {path}"
            argv = self.bed.exec_argv(node.name, [*AS_OPERATOR, "sh", "-c", script])
            subprocess.run(argv, input=text, text=True, check=True)

    def text(self, name: str) -> str:
        """A file of the run on the head; "" without it."""
        init = host.init_pid(self.nodes[0])
        with suppress(OSError):
            return Path(f"/proc/{init}/root{self.folder}/{name}").read_text(errors="replace")
        return ""

    def events(self, kind: str) -> list[dict[str, Any]]:
        found = [json.loads(line) for line in self.text("events.jsonl").splitlines()]
        return [one for one in found if one["event"] == kind]

    def until(self, done: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + LIMIT_SECONDS
        while not done():
            if time.monotonic() > deadline or self.process.poll() is not None:
                logs = (
                    self.text("supervisor.log") + self.text("ranks.log") + self.text("events.jsonl")
                )
                raise SystemExit(f"{len(self.nodes)} hosts: no {what}:\n{logs}")
            time.sleep(0.2)

    def started(self, start: int) -> dict[str, float]:
        """Wait for the ranks of a start, from 0; how long the leases and the start took."""
        count = len(self.nodes)
        marks = re.compile(r"^\[\d+\] began ([\d.]+)$", re.MULTILINE)
        self.until(
            lambda: len(marks.findall(self.text("ranks.log"))) >= count * (start + 1), "ranks"
        )
        last = max(map(float, marks.findall(self.text("ranks.log"))[-count:]))
        phase = [one for one in self.events("phase") if one["doing"] == "starting the ranks"][-1]
        at = last + time.time() - time.monotonic()
        return {
            "leases": round(phase["time"] - self.began, 1),
            "started": round(at - phase["time"], 1),
            "at": at,
        }


def measure(bed: Testbed, stack: Path, nodes: list[Node]) -> dict[str, Any]:
    """A start, a host that is cut off and comes back, and the end."""
    run = Run(bed, stack, nodes)
    lost = nodes[len(nodes) // 2].name
    try:
        found = run.started(0)
        time.sleep(5)
        at = time.time()
        bed.cut(lost)
        run.until(lambda: run.events("restart"), "restart")
        event = run.events("restart")[0]
        bed.heal(lost)
        again = run.started(1)
        time.sleep(5)
        began = time.monotonic()
        bed.exec_(nodes[0].name, "kill", run.text("supervisor.pid").strip(), check=True)
        run.process.wait(LIMIT_SECONDS)
        ended = round(time.monotonic() - began, 1)
    finally:
        if run.process.poll() is None:
            run.process.kill()
            run.process.wait()
    return {
        "hosts": len(nodes), **found, "lost": round(event["time"] - at, 1),
        "named": f"{lost}:" in event["message"] and "was lost" in event["message"],
        "again": round(again["at"] - event["time"], 1), "ended": ended, "load": os.getloadavg()[0],
    }  # fmt: skip


def main() -> int:
    """Measure, and add it to the results; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("hosts", nargs="*", type=int, default=list(COUNTS))
    parser.add_argument("--results", type=Path, required=True)
    options = parser.parse_args()
    there = options.results.exists()
    results = json.loads(options.results.read_text()) if there else {"machine": cpu()}
    results["hosts"] = []
    with tempfile.TemporaryDirectory(prefix="ftcluster-scale-") as folder:
        Path(folder).chmod(0o755)
        stack = make_stack(Path(folder))
        settings = Settings.from_environment()
        settings = replace(settings, extra=HOST_PACKAGES, bind_ro=(str(stack),))
        with Testbed(settings) as bed:
            bed.up(max(options.hosts))
            up = bed.wanted.recorded()
            assert up
            for count in options.hosts:
                results["hosts"].append(measure(bed, stack, up.all_nodes()[:count]))
                print(json.dumps(results["hosts"][-1]), flush=True)
                write(options.results, results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
