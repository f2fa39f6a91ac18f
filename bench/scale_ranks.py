"""Many ranks on one machine: a process of `bench.scale`, which starts it.

    python -m bench.scale_ranks supervise RUN_DIR   the supervisor, with this module for mpirun
    python -m bench.scale_ranks mpirun RANKS        what the supervisor starts
    python -m bench.scale_ranks lines RANKS         the same without guardians: their connections

The guardians are real, forked from one process that has imported their module, and all connect at
the same moment. A rank only reports its steps. On SIGUSR1 the middle rank hangs, and the others
wait for it in an all-reduce. When a rank begins, it writes a line to RUN_DIR/ranks with its rank,
its process and the time.
"""

import contextlib
import json
import mmap
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from ftcluster_common.protocol.launch import Launch, MpirunCommand
from ftcluster_train.io import rank_status
from ftcluster_train.rank import guardian
from ftcluster_train.supervisor import background, rank_launch, supervisor
from ftcluster_train.supervisor.heartbeats import StopRequest

STEP_SECONDS = 1.0
LAST_STEP = 1_000_000
GATE_FILE, RANKS_FILE = "gate", "ranks"
# a guardian's CPU time on a busy host
LINE = {"step": 0, "doing": "forward", "state": "S", "sleep": None, "cpu": 0.0, "wire": 0}


def supervise(run_dir: Path) -> int:
    """Run as the run's supervisor; return its exit code."""
    real = rank_launch.mpirun_command

    def ours(launch: Launch) -> MpirunCommand:
        argv = (sys.executable, "-m", __spec__.name, launch.program[0], str(len(launch.rank_hosts)))
        variables = {"PYTHONPATH": os.environ["PYTHONPATH"], "SCALE_RUN_DIR": launch.run_dir}
        return replace(real(launch), argv=argv, env={**launch.env, **variables})

    rank_launch.mpirun_command = ours
    background.become_supervisor(run_dir)
    return supervisor.supervise(run_dir, StopRequest())


def write(path: Path, *words: object) -> None:
    """Append a line with the time, from a clock that all processes of this machine share."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.write(descriptor, f"{' '.join(map(str, words))} {time.monotonic()}\n".encode())
    os.close(descriptor)


def mpirun(ranks: int, run_dir: Path) -> int:
    """Start the guardians; if one fails, end all, as Hydra does."""
    hung = mmap.mmap(-1, 1)
    waits, gate = os.pipe()
    pids = []
    for rank in range(ranks):
        if (pid := os.fork()) == 0:
            os.close(gate)
            os.read(waits, 1)  # until the gate is closed, when all guardians exist
            be_guardian(rank, ranks, run_dir, hung)
        pids.append(pid)
    signal.signal(signal.SIGUSR1, lambda *_: hung.__setitem__(0, 1))
    write(run_dir / GATE_FILE, os.getpid())
    os.close(gate)
    worst = 0
    for _ in range(ranks):
        _, status = os.wait()
        code = os.waitstatus_to_exitcode(status)
        if code and not worst:
            worst = code if code > 0 else 128 - code
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
    return worst


def be_guardian(rank: int, ranks: int, run_dir: Path, hung: mmap.mmap) -> NoReturn:
    """Run as the guardian of a rank that computes nothing."""

    def be_rank(_program: Sequence[str]) -> NoReturn:
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
        rank_status.write_stacks_on_signal()
        write(run_dir / RANKS_FILE, rank, os.getpid())
        step = 0
        while not hung[0]:
            step += 1
            rank_status.report(step, "forward")
            time.sleep(STEP_SECONDS)
        # all ranks are in the same step, as with collectives
        rank_status.report(LAST_STEP, "forward" if rank == ranks // 2 else "all-reduce")
        while True:
            signal.pause()

    guardian.execute = be_rank  # type: ignore[assignment]
    os.environ["LOCAL_RANK"] = str(rank)  # the first rank also reads the state of this host
    code = 1
    try:
        code = guardian.guard((), rank)
    finally:
        os._exit(code)


def lines(ranks: int, run_dir: Path) -> int:
    """Send the lines of many guardians from one process."""
    host, _, port = os.environ[guardian.ADDRESS].rpartition(":")
    secret = Path(os.environ[guardian.SECRET]).read_text(encoding="ascii").strip()
    with selectors.DefaultSelector() as selector:
        write(run_dir / GATE_FILE, os.getpid())
        for rank in range(ranks):
            connection = socket.create_connection((host, int(port)), 60)
            connection.sendall(rank_status.hello_of(secret, rank))
            selector.register(connection, selectors.EVENT_READ, rank)
        due, step, greeted = time.monotonic(), 0, set[int]()
        while True:
            for key, _ in selector.select(max(0.0, due - time.monotonic())):
                if not key.fileobj.recv(4096):  # type: ignore[union-attr]
                    return 0
                if key.data not in greeted:
                    greeted.add(key.data)
                    write(run_dir / RANKS_FILE, key.data, os.getpid())
            if time.monotonic() >= due:
                due, step = due + STEP_SECONDS, step + 1
                line = json.dumps({**LINE, "step": step}).encode() + b"\n"
                for key in selector.get_map().values():
                    key.fileobj.send(line)  # type: ignore[union-attr]


def main() -> int:
    """Run the program and return the exit code."""
    verb, word = sys.argv[1:]
    if verb == "supervise":
        return supervise(Path(word))
    run_dir = Path(os.environ["SCALE_RUN_DIR"])
    return (lines if verb == "lines" else mpirun)(int(word), run_dir)


if __name__ == "__main__":
    sys.exit(main())
