"""Programs that watch a run for weeks need no more memory or files after 100,000 messages."""

import contextlib
import json
import os
import socket
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible.plugins.action import ActionBase
from ansible_collections.ftcluster.cluster.plugins.action import follow
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.answers import MARK

from ftcluster.launch.events import EventReader, OutputPipe
from ftcluster.progress import state
from ftcluster.progress.state import RunProgress
from ftcluster_common.protocol.launch import Launch, RankCores, RankHost
from ftcluster_common.protocol.timeouts import Timeouts
from ftcluster_train.io.events import EVENTS, EventWriter
from ftcluster_train.io.rank_status import hello_of
from ftcluster_train.rank.guardian import _Guardian
from ftcluster_train.supervisor.heartbeats import Heartbeats
from ftcluster_train.supervisor.metrics_file import MetricsFile
from ftcluster_train.supervisor.runs import read_run
from ftcluster_train.supervisor.slow_hosts import SlowHostWatch

# the last value is the part before the first measurement
MESSAGES, POLLS, WARM_UP = 100_000, 1000, 0.2
MOST_BYTES = 3 << 20  # less than 40 bytes per message
# sizes of event files; only parts of a file above 8 MiB are read
HOURS_MEGABYTES, WEEKS_MEGABYTES = 1, 12
BEAT = {"step": 7, "doing": "forward", "state": "R", "sleep": None, "cpu": 1.5, "wire": 10}


def used() -> tuple[int, int]:
    """Return the number of open files, and the resident memory in bytes."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return len(list(Path("/proc/self/fd").iterdir())), pages * os.sysconf("SC_PAGE_SIZE")


def grows(do: Callable[[int], object], count: int) -> None:
    """Call a function `count` times; after a warm-up, neither files nor memory may grow."""
    for number in range(int(count * WARM_UP)):
        do(number)
    files, memory = used()
    for number in range(int(count * WARM_UP), count):
        do(number)
    files_after, memory_after = used()
    assert files_after == files
    assert memory_after - memory < MOST_BYTES


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    path = tmp_path / "runs/r-1"
    path.mkdir(parents=True)
    return path


STEP = {
    "step": 1, "epoch": 0.1, "loss": 1.0, "grad_norm": 1.0, "learning_rate": 0.1,
    "samples_per_second": 8.0, "train_seconds": 1.0, "remaining_seconds": 9.0,
}  # fmt: skip
TIMES: dict[str, Any] = {
    "step": 1, "steps": 1, "train_seconds": 1.0, "tokens": 10, "useful_tokens": 9,
    "waited_seconds": [0.1], "transfer_seconds": 0.1, "input_seconds": [0.1], "sent_bytes": 1.0,
    "collectives": 1, "latency_seconds": 0.1,
}  # fmt: skip


def test_the_supervisor(run_dir: Path) -> None:
    """The supervisor hears a guardian, writes metrics and compares hosts; strangers connect."""
    host = RankHost("head", "127.0.0.1", (RankCores("0", 1),))
    launch = Launch(
        run_dir=str(run_dir), program=("x",), env={}, ssh_config="", stack="/s", hosts=(host,)
    )
    beats = Heartbeats("127.0.0.1", 0, "secret", [host], time.monotonic(), Timeouts())
    address = beats.listens_at.rpartition(":")
    guardian = socket.create_connection((address[0], int(address[2])))
    guardian.sendall(hello_of("secret", 0))
    guardian.settimeout(10)
    line = json.dumps(BEAT).encode() + b"\n"
    began = time.monotonic()
    events, metrics = EventWriter(run_dir), MetricsFile(run_dir)
    slow = SlowHostWatch(run_dir, events, beats.lives)
    together = MESSAGES // POLLS

    def poll(number: int) -> None:
        guardian.sendall(line * together)
        if number % 20 == 0:  # a port scan
            socket.create_connection((address[0], int(address[2]))).close()
        if number % 10 == 0:
            events.write("step", **{**STEP, "step": number})
            events.write("communication", **{**TIMES, "step": number})
            metrics.write(launch, number)
            slow.tick()
        beats.poll(began + number)
        with contextlib.suppress(BlockingIOError):
            guardian.recv(4096, socket.MSG_DONTWAIT)

    try:
        grows(poll, POLLS)
        assert beats.lives[0].heard is not None
        assert beats.lives[0].step == 7
    finally:
        guardian.close()
        beats.close()


def test_what_reads_a_run_of_weeks_reads_as_much_as_of_one_of_hours(run_dir: Path) -> None:
    """`ps`, the metrics of a restarted supervisor, and `attach` and `report` on a copy."""
    host = RankHost("head", "127.0.0.1", (RankCores("0", 1),))
    launch = Launch(
        run_dir=str(run_dir), program=("x",), env={}, ssh_config="", stack="/s", hosts=(host,)
    )
    start = {"event": "start", "time": 1.0, "steps": 9, "world_size": 1, "epochs": 1.0}
    line = json.dumps({"event": "step", "time": 2.0, **STEP}) + "\n"
    end = {"event": "end", "time": 3.0, "state": "done", "exit_code": 0, "seconds": 2.0}
    readers: dict[str, Callable[[], object]] = {
        "ps": lambda: read_run(run_dir, alive=False),
        "metrics": lambda: MetricsFile(run_dir).write(launch),
        "attach, report": lambda: EventReader(run_dir / EVENTS).new_events(),
    }

    def peaks(megabytes: int) -> dict[str, int]:
        with (run_dir / EVENTS).open("w") as file:
            file.write(json.dumps(start) + "\n")
            for _ in range(megabytes):
                file.write(line * ((1 << 20) // len(line)))
            file.write(json.dumps(end) + "\n")
        found = {}
        tracemalloc.start()
        for name, read in readers.items():
            tracemalloc.reset_peak()
            read()
            found[name] = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    hours, weeks = peaks(HOURS_MEGABYTES), peaks(WEEKS_MEGABYTES)
    for name, peak in weeks.items():
        assert peak < 1.1 * hours[name] + MOST_BYTES, name


def test_a_guardian(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LOCAL_RANK", "0")
    ours, supervisor = socket.socketpair()
    reads, writes = os.pipe()
    guardian = _Guardian(ours, os.getpid(), reads, Timeouts(), tmp_path)
    report = json.dumps({"step": 7, "doing": "forward"}).encode() + b"\n"
    together = MESSAGES // POLLS

    def beat(number: int) -> None:
        os.write(writes, report * together)
        guardian._read(reads)
        supervisor.sendall(b"beat\n" * together)
        guardian._read(ours)
        guardian._send(
            {**guardian._doing, **(guardian._host(1e9 * number) if number % 10 == 0 else {})}
        )
        supervisor.recv(1 << 16)

    try:
        grows(beat, POLLS)
        assert guardian._doing == {"step": 7, "doing": "forward"}
    finally:
        for one in (ours, supervisor):
            one.close()
        os.close(reads)
        os.close(writes)


def test_a_command_that_follows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The follower on the control node, and the command that reads the copied files."""
    monkeypatch.setattr(ActionBase, "run", lambda *_: {})
    monkeypatch.setattr(state, "MOST_LOSSES", 1000)
    line = json.dumps({"event": "step", "time": 1.0, **STEP}) + "\n"
    said = json.dumps({"event": "output", "time": 1.0, "rank": 0, "stream": "stdout", "text": "x"})
    end = json.dumps({"event": "end", "time": 1.0, "state": "done", "exit_code": 0, "seconds": 1.0})
    together = 10
    copy, pipe, progress = tmp_path / "events.jsonl", OutputPipe(tmp_path), RunProgress("r")
    pipe.begin()
    reader, printed = EventReader(copy), 0

    def answers() -> Iterator[str]:
        """Return the host's response to each command: steps and output, in pieces."""
        yield f"{MARK} alive 1-1 0 0\n"
        events = output = 0
        for number in range(POLLS):
            data, text = line * together, (said + "\n") * together
            if number == POLLS - 1:
                data += end + "\n"
            whole = f"alive 1-1 {events} {events + len(data)} 2-2 {output} {output + len(text)}"
            yield f"{MARK} {whole}\n{data}{text}"
            if not number:  # the command asks if a log was renamed before
                yield f"{MARK} alive 2-2 0 {len(text)} 0 0 0\n{text}"
            events, output = events + len(data), output + len(text)
        yield f"{MARK} gone 2-2 {output} {output}\n"

    host, looks = answers(), 0
    files = memory = 0

    def execute(*_: object, **__: object) -> dict[str, str]:
        nonlocal printed, looks, files, memory
        if looks:
            for event in (*pipe.new_events(), *reader.new_events()):
                printed += event["event"] == "output"
                progress.add(event)
        if looks == int(POLLS * WARM_UP):
            files, memory = used()
        looks += 1
        return {"stdout": next(host)}

    monkeypatch.setattr(follow, "execute", execute)
    monkeypatch.setattr(time, "sleep", lambda _: None)
    action = follow.ActionModule.__new__(follow.ActionModule)
    copy.touch()
    action._task = SimpleNamespace(
        args={"run_dir": "/r", "destination": str(copy), "output": str(pipe.path)}
    )
    assert action.run()["end"]["state"] == "done"
    files_after, memory_after = used()
    assert files_after == files
    assert memory_after - memory < MOST_BYTES
    for event in (*pipe.new_events(), *reader.new_events()):
        printed += event["event"] == "output"
        progress.add(event)
    pipe.close()
    assert (printed, progress.ended) == (10 * POLLS, True)
    assert len(progress.losses) <= 1000
