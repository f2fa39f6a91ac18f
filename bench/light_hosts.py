"""Setup and a run of many light hosts, with one rank each.

    sudo .venv-dev/bin/python -m bench.light_hosts --results FILE [HOSTS ...]

from the repository's root, after `scripts/environment control`; the FILE keeps results for other
numbers of hosts. For each number of hosts tests/testbed boots containers with systemd and sshd of
their own. The program measures the first setup, and each stage of a second setup, which changes
nothing. It also measures a run of a script that computes nothing (`bench.light_rank`), with real
SSH and mpirun: the time to start, the supervisor's resources, the time until a hanging rank and a
host without power are reported and the ranks are restarted, and the time to stop. The stack is
installed once, on this machine, and is a layer below each host's disk, so only costs that grow with
the number of hosts are measured. Unlike real hosts, all hosts share this machine's cores.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.machines import cpu, resumed
from bench.runs import ROOT, write
from tests.programs import FTCLUSTER
from tests.rights import HOST_PACKAGES
from tests.testbed import Testbed
from tests.testbed.settings import Settings

COUNTS = (4, 8, 16, 32, 64)
STAGES = ("preflight", "system", "stack", "mesh", "verify")
PREFIX = Path("/opt/ftcluster-bench")
SECONDS = 3600
LIMIT_SECONDS = 300.0
STEADY_SECONDS = 10.0
HANG_SECONDS, HANG_STEP = 10, 30
# total CPU time of a unit's main process, in nanoseconds
CPU_TIME = "cat /proc/$(systemctl show --property MainPID --value ftcluster-{run})/task/*/schedstat"
MPIRUN = "pgrep -o -u ftcluster mpiexec"


class Hosts:
    """Light hosts, and the control node's commands for them."""

    def __init__(self, bed: Testbed, folder: Path, count: int) -> None:
        self.bed, self.folder, self.names = bed, folder, [f"node{n}" for n in range(count)]
        self.folder.mkdir(exist_ok=True)
        lines = []
        for line in bed.inventory().splitlines():
            host = line.split(" ")[0]
            if not host.startswith("node") or host in self.names:
                lines.append(line)
        self.inventory = self.folder / "hosts.ini"
        self.inventory.write_text("\n".join([*lines, ""]))

    def run(self, *words: str) -> "subprocess.CompletedProcess[str]":
        """Run a command; if it fails, end the measurement with its error."""
        done = self.bed.run(
            FTCLUSTER, *words, env={"XDG_STATE_HOME": str(self.folder)}, cwd=self.folder,
            timeout=SECONDS,
        )  # fmt: skip
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(words)}: {done.stdout}{done.stderr}")
        return done

    def setup(self, *options: str) -> float:
        """Set the hosts up, and return the seconds that the setup took."""
        began = time.monotonic()
        self.run("setup", str(self.inventory), "-e", f"ftcluster_prefix={PREFIX}", *options)
        return round(time.monotonic() - began, 1)

    def on_head(self, command: str) -> str:
        """Return the output of a root shell command on the head, even if the command fails."""
        return self.bed.exec_(self.names[0], "sh", "-c", command).stdout


class LightRun:
    """A run of `light_rank`, with a rank on each host."""

    def __init__(self, hosts: Hosts, script: Path) -> None:
        self.hosts, self.ranks = hosts, len(hosts.names)
        self.hanging = self.ranks // 2
        began = time.monotonic()
        done = hosts.run(
            "run", "--ranks-per-host", "1", "--max-restarts", "9", "--detach",
            "--min-nodes", str(self.ranks - 1), "--hang-seconds", str(HANG_SECONDS),
            "--", str(script), str(self.hanging), str(HANG_STEP),
        )  # fmt: skip
        self.launched = round(time.monotonic() - began, 1)
        self.id = done.stdout.strip()

    def events(self, kind: str) -> list[dict[str, Any]]:
        lines = self.hosts.on_head(f"cat {PREFIX}/runs/{self.id}/events.jsonl").splitlines()
        return [one for one in map(json.loads, lines) if one["event"] == kind]

    def times(self, what: str, start: int) -> list[float]:
        """Return the times of the ranks' first messages in one of their starts."""
        said = f"grep -h '^{what} {start} ' {PREFIX}/runs/{self.id}/logs/rank-*.log"
        return [float(line.split()[2]) for line in self.hosts.on_head(said).splitlines()]

    def until(self, done: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + LIMIT_SECONDS
        while not done():
            if time.monotonic() > deadline:
                log = self.hosts.on_head(f"tail -n 50 {PREFIX}/runs/{self.id}/supervisor.log")
                raise SystemExit(f"{self.id}: {what}; the supervisor says:\n{log}")
            time.sleep(1)

    def started(self, start: int, ranks: int) -> dict[str, float]:
        """Wait for all ranks of a start; return the seconds after mpirun's start."""
        self.until(lambda: len(self.times("start", start)) == ranks, f"not all of start {start}")
        began = [one for one in self.events("phase") if one["doing"] == "starting the ranks"]
        return {"all_began": round(max(self.times("start", start)) - began[start]["time"], 1)}

    def mpirun_alone(self) -> float:
        """Return the seconds in which mpirun alone starts a program that ends at once."""
        pid = self.hosts.on_head(MPIRUN).strip()
        words = self.hosts.on_head(f"tr '\\0' '\\n' < /proc/{pid}/cmdline").splitlines()
        last = max(n for n, word in enumerate(words) if word in ("-n", "-np")) + 2
        environment = self.hosts.on_head(f"tr '\\0' '\\n' < /proc/{pid}/environ").splitlines()
        argv = ["runuser", "-u", "ftcluster", "--", "env", "-i", *environment, *words[:last]]
        began = time.monotonic()
        self.hosts.bed.exec_(self.hosts.names[0], *argv, "/bin/true", check=True)
        return round(time.monotonic() - began, 1)

    def cpu_seconds(self) -> float:
        lines = self.hosts.on_head(CPU_TIME.format(run=self.id)).splitlines()
        return sum(int(line.split()[0]) for line in lines) / 1e9

    def named(self, restart: int, began: float, words: str, left: int) -> dict[str, Any]:
        """Return the seconds until the fault was named, and until all ranks had begun again."""
        self.until(lambda: len(self.events("restart")) >= restart, f"no restart {restart}")
        event = self.events("restart")[restart - 1]
        self.started(restart, left)
        return {
            "seconds": round(event["time"] - began, 1),
            "named": words in event["message"],
            "message": event["message"],
            "again": round(max(self.times("start", restart)) - event["time"], 1),
        }

    def stop(self) -> dict[str, Any]:
        began = time.monotonic()
        self.hosts.run("stop", self.id)
        seconds = round(time.monotonic() - began, 1)
        left = [
            name
            for name in self.hosts.names
            if self.hosts.bed.exec_(name, "pgrep", "-u", "ftcluster").stdout.strip()
        ]
        return {"seconds": seconds, "left": left}


def measure_run(hosts: Hosts, script: Path) -> dict[str, Any]:
    """Measure a run from its launch to its end."""
    run = LightRun(hosts, script)
    ranks, last = run.ranks, hosts.names[-1]
    found: dict[str, Any] = {"launched": run.launched, **run.started(0, ranks)}
    found["mpirun_alone"] = run.mpirun_alone()
    before, began = run.cpu_seconds(), time.monotonic()
    time.sleep(STEADY_SECONDS)
    used = run.cpu_seconds() - before
    found["supervisor_cpu"] = round(used / (time.monotonic() - began), 4)
    run.until(lambda: run.times("hangs", 0), "no rank hangs")
    name = f"rank {run.hanging} on node{run.hanging}"
    found["hung"] = run.named(1, run.times("hangs", 0)[0], name, ranks)
    run.until(lambda: len(run.times("together", 1)) == ranks, "not all are together again")
    at = time.time()
    hosts.bed.kill(last)
    found["lost"] = run.named(2, at, last, ranks - 1)
    hosts.bed.boot(last)  # `stop` asks all hosts of the run
    found["stop"] = run.stop()
    return found


def measure(bed: Testbed, folder: Path, count: int) -> dict[str, Any]:
    """Measure one number of hosts; some of the hosts are set up already."""
    began = time.monotonic()
    bed.up(count)
    found: dict[str, Any] = {"hosts": count, "up": round(time.monotonic() - began, 1)}
    hosts = Hosts(bed, folder / str(count), count)
    found["first"] = hosts.setup()
    found["run"] = measure_run(hosts, folder / "script" / "light_rank.py")
    found["again"] = {stage: hosts.setup("--tags", stage) for stage in STAGES}
    found["load"] = os.getloadavg()[0]
    return found


@contextmanager
def light_hosts(folder: Path) -> Iterator[Testbed]:
    """Yield a testbed whose hosts have the stack below their disks; install it here first."""
    argv = [
        FTCLUSTER, "setup", "localhost", "--tags", "preflight,stack",
        "-e", f"ftcluster_prefix={PREFIX}",
        "-e", "ansible_python_interpreter=/usr/bin/python3",  # this path exists on the hosts too
    ]  # fmt: skip
    environment = os.environ | {"XDG_STATE_HOME": str(folder / "here")}
    layer = folder / "layer"
    below = layer / PREFIX.relative_to("/")
    below.mkdir(parents=True)
    try:
        subprocess.run(argv, env=environment, cwd=folder, check=True)
        (PREFIX / "stacks").rename(below / "stacks")
        for stack in (below / "stacks").glob("native-*"):
            stack.chmod(0o755)  # the hosts have an account, which locks the stack
    finally:
        shutil.rmtree(PREFIX, ignore_errors=True)
    settings = Settings.from_environment()
    extra = tuple(sorted({*settings.extra, *HOST_PACKAGES}))
    with Testbed(replace(settings, extra=extra, layers=(str(layer),))) as bed:
        yield bed


def main() -> int:
    """Measure, and write the results so far; return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("hosts", nargs="*", type=int, default=list(COUNTS))
    parser.add_argument("--results", type=Path, required=True)
    options = parser.parse_args()
    results = resumed(options.results, cpu(), "rows")
    # below /var/tmp, because a file system in memory has no space for a stack
    folder = Path(tempfile.mkdtemp(prefix="ftcluster-light-", dir="/var/tmp"))
    try:
        (folder / "script").mkdir()
        shutil.copy(ROOT / "bench/light_rank.py", folder / "script")
        with light_hosts(folder) as bed:
            for count in sorted(options.hosts):
                found = measure(bed, folder, count)
                print(json.dumps(found), flush=True)
                others = [one for one in results["rows"] if one["hosts"] != count]
                results["rows"] = sorted((*others, found), key=lambda one: int(one["hosts"]))
                write(options.results, results)
    finally:
        shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
