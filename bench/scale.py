"""Growth of a run's costs with the number of its ranks, of its events and of other runs.

    .venv-dev/bin/python -m bench.scale --results FILE [--ranks N ...] [--lines N ...]

from the repository's root; the FILE keeps results for other numbers. For each number of ranks (8 a
host) the real supervisor starts real guardians on this machine, with ranks that compute nothing
(`bench.scale_ranks`); only the leases of the other hosts are stand-ins. The program measures the
time until all guardians, which connect at the same moment, are greeted; CPU time, memory and files
of the supervisor; the time to report a hanging rank and a stopped rank; the time to restart all
ranks; and the time to stop the run. With --lines one process sends the messages of so many
guardians, and only the supervisor is measured. All processes share this machine's cores.
"""

import argparse
import json
import os
import resource
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.machines import cpu, resumed
from bench.runs import ROOT, write
from bench.scale_ranks import GATE_FILE, RANKS_FILE
from ftcluster_common.protocol.launch import GUARD_FILE, LAUNCH_FILE, Launch, RankCores, RankHost
from ftcluster_train.io.events import EVENTS
from ftcluster_train.supervisor.metrics_file import MetricsFile

RANKS = (8, 64, 256, 512)
LINES = (512, 1024, 2048, 4096)
RUNS = (100, 1000, 10_000)
EVENT_COUNTS = (10_000, 100_000, 1_000_000)
A_HOST = 8  # ranks per host
STEADY_SECONDS = 10.0
LIMIT_SECONDS = 180.0
SSH = """#!/bin/sh
case "$*" in *host.lease*) while read -r _; do echo held; done; exit;; esac
"""


class Run:
    """A run of the real supervisor in a separate folder."""

    def __init__(self, folder: Path, ranks: int, kind: str) -> None:
        self.ranks = ranks
        self.folder = folder / "runs" / f"scale-{ranks}-{kind}-{secrets.token_hex(2)}"
        self.folder.mkdir(parents=True)
        (folder / "ssh").write_text(SSH)
        (folder / "ssh").chmod(0o755)
        hosts = tuple(
            RankHost(f"xeon{n}", f"127.0.0.{n}" if n < 2 else f"127.1.{n // 256}.{n % 256}",
                     (RankCores("0", 1),) * min(A_HOST, ranks))
            for n in range(1, max(1, ranks // A_HOST) + 1)
        )  # fmt: skip
        launch = Launch(
            str(self.folder), (kind,), {"FTCLUSTER_RUN": self.folder.name}, hosts, "/none",
            sys.prefix, max_restarts=9,
        )  # fmt: skip
        (self.folder / LAUNCH_FILE).write_text(json.dumps(launch.to_dict()))
        (self.folder / GUARD_FILE).write_text(f"{secrets.token_hex(16)}\n")
        self.began = time.time()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "bench.scale_ranks", "supervise", str(self.folder)],
            cwd=ROOT, start_new_session=True,
            env={
                "PATH": f"{folder}:{os.environ['PATH']}", "HOME": os.environ["HOME"],
                "PYTHONPATH": f"{ROOT}:{ROOT}/train:{ROOT}/common",
            },
        )  # fmt: skip

    def greeted(self, start: int) -> dict[str, float]:
        """Wait for the ranks of a start, from 0; return the times of mpirun and guardians."""
        self.until(lambda: len(self.lines(RANKS_FILE)) == self.ranks * (start + 1), "greetings")
        gate = float(self.lines(GATE_FILE)[start][-1])
        last = max(float(words[-1]) for words in self.lines(RANKS_FILE)[-self.ranks :])
        phases = [one for one in self.events("phase") if one["doing"] == "starting the ranks"]
        to_wall = time.time() - time.monotonic()
        return {
            "hosts_asked": round(phases[-1]["time"] - self.began, 2),
            "forked": round(gate + to_wall - phases[-1]["time"], 2),
            "greeted": round(last - gate, 2),
            "at": last + to_wall,
        }

    def lines(self, name: str) -> list[list[str]]:
        path = self.folder / name
        return [line.split() for line in path.read_text().splitlines()] if path.exists() else []

    def events(self, kind: str) -> list[dict[str, Any]]:
        path = self.folder / EVENTS
        found = map(json.loads, path.read_text().splitlines() if path.exists() else ())
        return [one for one in found if one["event"] == kind]

    def until(self, done: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + LIMIT_SECONDS
        while not done():
            if time.monotonic() > deadline or self.process.poll() is not None:
                log = (self.folder / "supervisor.log").read_text()
                raise SystemExit(f"{self.folder.name}: no {what}; the supervisor says:\n{log}")
            time.sleep(0.05)

    def steady(self) -> dict[str, float]:
        """Return CPU shares of the supervisor and a guardian, and the supervisor's open files."""
        guardians = children(int(self.lines(GATE_FILE)[-1][0]))
        pids = (self.process.pid, *guardians)
        before, began = {pid: cpu_seconds(pid) for pid in pids}, time.monotonic()
        time.sleep(STEADY_SECONDS)
        took = time.monotonic() - began
        used = {pid: (cpu_seconds(pid) - before[pid]) / took for pid in pids}
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        memory = int(status.partition("VmRSS:")[2].split()[0]) / 1024
        return {
            "supervisor_cpu": round(used[self.process.pid], 4),
            "guardian_cpu": round(sum(used[pid] for pid in guardians) / max(1, len(guardians)), 5),
            "memory_mb": round(memory, 1),
            "files": len([*Path(f"/proc/{self.process.pid}/fd").iterdir()]),
        }

    def named(self, rank: int, strike: Callable[[], None]) -> dict[str, Any]:
        """Return the seconds until a killed rank is named, and until all have restarted."""
        starts, at = len(self.events("restart")), time.time()
        strike()
        self.until(lambda: len(self.events("restart")) > starts, "restart")
        event = self.events("restart")[-1]
        again = self.greeted(starts + 1)
        return {
            "seconds": round(event["time"] - at, 1),
            "named": f"rank {rank} on xeon{rank // A_HOST + 1}:" in event["message"],
            "again": round(again["at"] - event["time"], 1),
        }

    def stop(self, times: int = 1) -> float:
        """Stop the run; return the seconds that this takes."""
        began = time.monotonic()
        for _ in range(times):
            self.process.send_signal(signal.SIGTERM)
            time.sleep(0.1)
        self.process.wait(LIMIT_SECONDS)
        return round(time.monotonic() - began, 1)

    def kill(self) -> None:
        """End the remains of a failed measurement."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


def children(pid: int) -> list[int]:
    """Return the processes that a process has started."""
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def cpu_seconds(pid: int) -> float:
    """Return the CPU seconds of a process's threads; schedstat's first field is in nanoseconds."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def with_guardians(folder: Path, ranks: int) -> dict[str, Any]:
    """Measure the start, the steady state, a hanging rank, a stopped rank, and the end."""
    run = Run(folder, ranks, "mpirun")
    try:
        started = run.greeted(0)
        steady = run.steady()
        mpirun = int(run.lines(GATE_FILE)[-1][0])
        hung = run.named(ranks // 2, lambda: os.kill(mpirun, signal.SIGUSR1))
        victim = ranks // 3
        pid = next(int(words[1]) for words in run.lines(RANKS_FILE)[-ranks:]
                   if int(words[0]) == victim)  # fmt: skip
        time.sleep(3)  # time for the first heartbeats
        stopped = run.named(victim, lambda: os.kill(pid, signal.SIGSTOP))
        time.sleep(3)
        ended = run.stop()
    finally:
        run.kill()
    found = {"ranks": ranks, **started, **steady, "hung": hung, "stopped": stopped}
    return {**found, "ended": ended, "load": os.getloadavg()[0]}


def with_lines(folder: Path, ranks: int) -> dict[str, Any]:
    """Measure start and steady state of the supervisor alone."""
    run = Run(folder, ranks, "lines")
    try:
        started, steady = run.greeted(0), run.steady()
        run.stop(2)
    finally:
        run.kill()
    return {"ranks": ranks, **started, **steady, "load": os.getloadavg()[0]}


def listing(folder: Path, runs: int) -> dict[str, float]:
    """Measure the first page of `ftcluster ps` on the head."""
    for number in range(runs):
        run = folder / f"quickstart-20260131-{number:06}-{number % 65536:04x}"
        run.mkdir(parents=True)
        lines = [
            {"event": "start", "time": 1e9 + number, "world_size": 2, "steps": 10},
            {"event": "end", "time": 1e9 + number + 5, "state": "done", "exit_code": 0,
             "seconds": 5.0},
        ]  # fmt: skip
        (run / EVENTS).write_text("".join(json.dumps(line) + "\n" for line in lines))
    command = [sys.executable, "-m", "ftcluster_train.host.runs", "list", str(folder), "0", "50"]
    began = time.monotonic()
    done = subprocess.run(
        command, env={"PYTHONPATH": f"{ROOT}/train:{ROOT}/common"}, capture_output=True, check=True
    )
    seconds = time.monotonic() - began
    return {"runs": runs, "seconds": round(seconds, 2), "bytes": len(done.stdout)}


def replay(folder: Path, events: int) -> dict[str, float]:
    """Measure a restarted supervisor, which reads all events for the metrics file."""
    folder = folder / "runs" / "replay"  # the metrics are beside `runs`
    folder.mkdir(parents=True)
    with (folder / EVENTS).open("w", encoding="utf-8") as file:
        event = {
            "event": "step", "time": 1e9, "step": 0, "epoch": 0.1, "loss": 1.5,
            "samples_per_second": 100.0, "remaining_seconds": 5.0, "train_seconds": 1.0,
        }  # fmt: skip
        before, _, after = json.dumps(event).partition('"step": 0')
        file.writelines(f'{before}"step": {step}{after}\n' for step in range(1, events + 1))
    launch = Launch(str(folder), (), {}, (RankHost("xeon1", "127.0.0.1", (RankCores("0", 1),)),),
                    "", "/none")  # fmt: skip
    read, write_end = os.pipe()
    if (pid := os.fork()) == 0:  # a separate process, to measure its memory
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        began = time.monotonic()
        MetricsFile(folder).write(launch)
        seconds = time.monotonic() - began
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        os.write(write_end, json.dumps([round(seconds, 2), round(grown)]).encode())
        os._exit(0)
    os.waitpid(pid, 0)
    seconds, memory = json.loads(os.read(read, 4096))
    os.close(read)
    os.close(write_end)
    return {"events": events, "seconds": seconds, "memory_mb": memory}


def main() -> int:
    """Measure, and write the results so far; return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--results", type=Path)
    parser.add_argument("--ranks", nargs="*", type=int, default=list(RANKS))
    parser.add_argument("--lines", nargs="*", type=int, default=list(LINES))
    parser.add_argument("--runs", nargs="*", type=int, default=list(RUNS))
    parser.add_argument("--events", nargs="*", type=int, default=list(EVENT_COUNTS))
    options = parser.parse_args()
    results = resumed(options.results, cpu())
    folder = Path(tempfile.mkdtemp(prefix="ftcluster-scale-"))
    measurements: dict[str, tuple[list[int], Callable[[int], dict[str, Any]]]] = {
        "ranks": (options.ranks, lambda count: with_guardians(folder / f"r{count}", count)),
        "lines": (options.lines, lambda count: with_lines(folder / f"l{count}", count)),
        "runs": (options.runs, lambda count: listing(folder / f"ps{count}", count)),
        "events": (options.events, lambda count: replay(folder / f"e{count}", count)),
    }
    try:
        for name, (counts, measure) in measurements.items():
            for count in counts:
                found = measure(count)
                print(name, json.dumps(found), flush=True)
                [key, *_] = found  # the number of ranks or lines
                others = [one for one in results.get(name, []) if one[key] != count]
                results[name] = sorted((*others, found), key=lambda one: one[key])
                write(options.results, results)
    finally:
        shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
