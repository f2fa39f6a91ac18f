"""A log that is rotated while it is followed, by the real shell command and the real writer."""

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible.plugins.action import ActionBase
from ansible_collections.ftcluster.cluster.plugins.action import follow

from ftcluster_train.host.mpi_output import append_to_log


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A run whose supervisor is alive."""
    monkeypatch.setattr(ActionBase, "run", lambda *_: {})
    folder = tmp_path / "runs/r-1"
    folder.mkdir(parents=True)
    process = subprocess.Popen([sys.executable, "-c", "input()", folder], stdin=subprocess.PIPE)
    (folder / "supervisor.pid").write_text(f"{process.pid}\n")
    yield folder
    process.kill()
    process.communicate()


def follower(run_dir: Path, copy: Path) -> Any:
    action = follow.ActionModule.__new__(follow.ActionModule)
    action._task = SimpleNamespace(args={
        "run_dir": str(run_dir), "file": "ranks.log", "destination": str(copy),
        "poll_seconds": "0.01",
    })  # fmt: skip
    action._low_level_execute_command = lambda command, **_: {
        "stdout": subprocess.run(["sh", "-c", command], capture_output=True, check=False).stdout
        .decode(errors="surrogateescape")
    }  # fmt: skip
    return action


def test_no_line_is_lost_or_doubled_when_the_log_is_rotated(run_dir: Path) -> None:
    lines = [f"line {number}\n".encode() for number in range(1500)]

    def write() -> None:
        for line in lines:
            append_to_log(run_dir / "ranks.log", line, limit_bytes=4000)
            time.sleep(0.001)
        (run_dir / "supervisor.pid").write_text("0")  # the run has ended

    writer = threading.Thread(target=write)
    writer.start()
    follower(run_dir, run_dir / "copy").run()
    writer.join()
    assert (run_dir / "ranks.log.1").exists()
    assert (run_dir / "copy").read_bytes() == b"".join(lines)


def test_lines_that_are_lost_are_said(run_dir: Path) -> None:
    log, copy = run_dir / "ranks.log", run_dir / "copy"
    action = follower(run_dir, copy)
    polled = action._poll

    def poll(*arguments: Any) -> Any:
        found = polled(*arguments)
        if found.data == b"1111\n":
            for text in (b"2222\n", b"3333\n"):
                append_to_log(log, text, limit_bytes=5)
            (run_dir / "supervisor.pid").write_text("0")
        return found

    action._poll = poll
    append_to_log(log, b"1111\n")
    action.run()
    assert copy.read_bytes() == b"1111\n" + follow.LOST + b"3333\n"


def test_one_command_waits_for_what_comes(run_dir: Path) -> None:
    action = follower(run_dir, run_dir / "copy")
    threading.Timer(0.7, lambda: append_to_log(run_dir / "ranks.log", b"late\n")).start()
    assert action._poll(str(run_dir), "ranks.log", 0, 20).data == b"late\n"
    (run_dir / "supervisor.pid").write_text("0")
    assert not action._poll(str(run_dir), "ranks.log", 5, 20).alive
