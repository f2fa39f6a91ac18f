"""Following a log that is rotated, with the real shell command and the real writer."""

import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible_collections.ftcluster.cluster.plugins.action import follow
from ansible_collections.ftcluster.cluster.plugins.plugin_utils import samples, typed

from ftcluster.launch.events import EventReader, OutputPipe
from ftcluster_train.io import mpi_output
from ftcluster_train.io.events import EventWriter
from ftcluster_train.io.mpi_output import append_to_log
from ftcluster_train.supervisor import monitors
from tests.programs import wait_for


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Make a run whose supervisor is alive."""
    monkeypatch.setattr(ActionBase, "run", lambda *_: {})
    folder = tmp_path / "runs/r-1"
    folder.mkdir(parents=True)
    process = subprocess.Popen([sys.executable, "-c", "input()", folder], stdin=subprocess.PIPE)
    (folder / "supervisor.pid").write_text(f"{process.pid}\n")
    yield folder
    process.kill()
    process.communicate()


def follower(run_dir: Path, copy: Path, **given: str) -> Any:
    action = follow.ActionModule.__new__(follow.ActionModule)
    action._task = SimpleNamespace(args={
        "run_dir": str(run_dir), "destination": str(copy), "poll_seconds": "0.01",
        **(given or {"file": "ranks.log"}),
    })  # fmt: skip
    action._run_dir = str(run_dir)
    action._low_level_execute_command = lambda command, **_: {
        "stdout": subprocess.run(["sh", "-c", command], capture_output=True, check=False).stdout
        .decode(errors="surrogateescape")
    }  # fmt: skip
    return action


def end(run_dir: Path) -> None:
    EventWriter(run_dir).write("end", state="done", exit_code=0, seconds=1.0)
    (run_dir / "supervisor.pid").write_text("0")


def test_a_log_is_followed_past_a_supervisor_that_is_started_again(run_dir: Path) -> None:
    """A killed supervisor is absent for a second, which is not the run's end."""
    pid, log, copy = (run_dir / name for name in ("supervisor.pid", "ranks.log", "copy"))
    alive = pid.read_text()
    append_to_log(log, b"before\n")
    pid.write_text("0")
    following = threading.Thread(target=follower(run_dir, copy).run)
    following.start()
    wait_for(copy.exists)
    time.sleep(0.5)
    assert following.is_alive()
    pid.write_text(alive)
    append_to_log(log, b"after\n")
    wait_for(lambda: b"after" in copy.read_bytes())
    end(run_dir)
    following.join()
    assert copy.read_bytes() == b"before\nafter\n"


def test_a_log_without_a_supervisor_is_no_end(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The supervisor has not started yet, or is gone for good."""
    monkeypatch.setattr(follow, "GONE_SECONDS", 0.2)
    (run_dir / "supervisor.pid").write_text("0")
    with pytest.raises(AnsibleActionFail, match=follow.SUPERVISOR_GONE):
        follower(run_dir, run_dir / "copy").run()


def test_the_log_of_a_slurm_job_is_followed_from_another_node(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "GONE_SECONDS", 0.2)
    squeue, log, copy = tmp_path / "bin/squeue", run_dir / "ranks.log", run_dir / "copy"
    squeue.parent.mkdir()
    fails = 'echo "slurm_load_jobs error: {}" >&2; exit 1'
    squeue.write_text(f"#!/bin/sh\n{fails.format('Unable to contact slurm controller')}\n")
    squeue.chmod(0o755)
    monkeypatch.setenv("PATH", f"{squeue.parent}:/usr/bin:/bin")
    (run_dir / "supervisor.pid").write_text("0")  # a process id of the other node
    (run_dir / "launch.json").write_text(json.dumps({"run": "r-1", "slurm_job": "12", "x": 1}))
    following = threading.Thread(target=follower(run_dir, copy).run)
    following.start()
    time.sleep(1)
    there = "[ $3 = --jobs=12 ] && printf '11\\n12\\n'"
    squeue.write_text(f"#!/bin/sh\n{there} || {{ {fails.format('Invalid job id specified')}; }}\n")
    time.sleep(1)
    append_to_log(log, b"late\n")
    wait_for(copy.exists)
    end(run_dir)
    following.join()
    assert copy.read_bytes() == b"late\n"
    # the job has ended without an event
    (run_dir / "launch.json").write_text(json.dumps({"slurm_job": "13"}))
    (run_dir / "events.jsonl").unlink()
    with pytest.raises(AnsibleActionFail, match=follow.SUPERVISOR_GONE):
        follower(run_dir, copy).run()


def test_the_log_of_a_run_that_prepares_is_waited_for(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "GONE_SECONDS", 0.2)
    # on a busy machine, 1 s passes without any progress
    monkeypatch.setattr(follow, "STARTS_SECONDS", 3.0)
    pid, log, copy = run_dir / "supervisor.pid", run_dir / "ranks.log", run_dir / "copy"
    alive = pid.read_text()
    pid.unlink()
    program = tmp_path / "sleeps"
    program.write_text("import time; time.sleep(60)")
    preparing = subprocess.Popen(
        [sys.executable, program, "-m", "ftcluster_train.engine.prepare", run_dir]
    )
    following = threading.Thread(target=follower(run_dir, copy).run)
    following.start()
    time.sleep(4)
    preparing.terminate()
    preparing.wait()
    time.sleep(0.3)
    pid.write_text(alive)
    append_to_log(log, b"begun\n")
    wait_for(copy.exists)
    end(run_dir)
    following.join()
    assert copy.read_bytes() == b"begun\n"
    # a supervisor that is never started
    pid.unlink()
    (run_dir / "events.jsonl").unlink()
    with pytest.raises(AnsibleActionFail, match=follow.SUPERVISOR_GONE):
        follower(run_dir, copy).run()


def test_no_line_is_lost_or_doubled_when_the_log_is_rotated(run_dir: Path) -> None:
    lines = [f"line {number}\n".encode() for number in range(1500)]

    def write() -> None:
        for line in lines:
            append_to_log(run_dir / "ranks.log", line, limit_bytes=4000)
            time.sleep(0.001)
        end(run_dir)

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
        if found[1][0].data == b"1111\n":
            for text in (b"2222\n", b"3333\n"):
                append_to_log(log, text, limit_bytes=5)
            end(run_dir)
        return found

    action._poll = poll
    append_to_log(log, b"1111\n")
    action.run()
    assert copy.read_bytes() == b"1111\n" + follow.ROTATED.encode() + b"3333\n"


def test_one_command_waits_for_what_comes(run_dir: Path) -> None:
    action = follower(run_dir, run_dir / "copy")
    log = follow._Log("ranks.log", bytes)
    threading.Timer(0.7, lambda: append_to_log(run_dir / "ranks.log", b"late\n")).start()
    assert action._poll([log], 20)[1][0].data == b"late\n"
    (run_dir / "supervisor.pid").write_text("0")
    log.offset = 5
    assert not action._poll([log], 20)[0]


def test_of_a_long_log_the_end_comes_and_what_is_left_out_is_said(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "LAST_BYTES", 50)
    log, copy = run_dir / "ranks.log", run_dir / "copy"
    log.write_bytes(b"".join(b"line %d\n" % number for number in range(100)))
    follower(run_dir, copy, file="ranks.log", once="true").run()
    first, *lines = copy.read_text().splitlines()
    assert first == f"[earlier lines are in {run_dir}/logs on the head]"
    assert lines == [f"line {number}" for number in range(94, 100)]


def test_what_is_typed_reaches_a_run_that_waits_for_it(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each line is sent once, with signs of life between lines; nothing after the run's end."""
    monkeypatch.setattr(typed, "SIGN_SECONDS", 0.4)
    local, remote, events = (run_dir / n for n in ("typed", typed.NAME, "events.jsonl"))
    action = follower(run_dir, run_dir / "copy", prompts=str(local))
    run = action._low_level_execute_command

    def execute(command: str, in_data: bytes = b"", **_: Any) -> dict[str, Any]:
        if "cat >>" in command:
            subprocess.run(["sh", "-c", command], input=in_data, check=True)
        found: dict[str, Any] = run(command)
        return found

    action._low_level_execute_command = execute
    local.touch()
    remote.touch()
    following = threading.Thread(target=action.run)
    following.start()
    events.write_text('{"event": "answered"}\n')
    wait_for(lambda: remote.read_bytes() == b"\n")
    for line in ('"a\'b"', "null"):
        with local.open("a") as file:
            file.write(f"{line}\n")
        wait_for(lambda line=line: remote.read_text().rstrip("\n").endswith(line))
        with events.open("a") as file:
            file.write('{"event": "answered"}\n')
    remote.unlink()
    with events.open("a") as file:
        file.write('{"event": "end"}\n')
    following.join(10)
    assert not following.is_alive()
    assert not remote.exists()


def _script_watch(run_dir: Path) -> monitors.Watch:
    launch: Any = SimpleNamespace(
        run_dir=str(run_dir), run="r-1", hosts=[0], rank_hosts=[0], script=True
    )
    return monitors.watch_of(launch, EventWriter(run_dir))


def test_a_script_prints_for_weeks_and_events_do_not_grow(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 0's output reaches the control node separately from its events."""
    append = monitors.append_to_log
    monkeypatch.setattr(monitors, "append_to_log", lambda path, data: append(path, data, 20_000))
    monkeypatch.setattr(mpi_output, "FLUSH_SECONDS", 0.0)
    monkeypatch.setattr(follow, "WAIT_SECONDS", 0)
    lines = [f"{number}: {'#' * (number % 60)}\r\n" for number in range(1500)]

    shown: list[dict[str, Any]] = []
    copy, polls = tmp_path / "events.jsonl", [0]
    rotated = run_dir / "output.jsonl.1"

    def write() -> None:
        watch, before = _script_watch(run_dir), None
        for line in lines:
            watch.feed("stderr", f"[r-1 0] {line}".encode())
            now = (rotated.stat().st_ino, rotated.stat().st_mtime_ns) if rotated.exists() else None
            if now != before:  # otherwise a busy machine rotates the log twice before it is read
                before, seen = now, polls[0]
                wait_for(lambda seen=seen: polls[0] >= seen + 6)
        watch.close()
        EventWriter(run_dir).write("end", state="done", exit_code=0, seconds=1.0)
        (run_dir / "supervisor.pid").write_text("0")

    pipe = OutputPipe(tmp_path)
    pipe.begin()

    def follow_it() -> Any:
        action = follower(run_dir, copy, output=str(pipe.path))
        polled = action._poll

        def poll(*arguments: Any) -> Any:
            found = polled(*arguments)
            shown.extend(pipe.new_events())
            polls[0] += 1
            return found

        action._poll = poll
        return action.run()

    writer = threading.Thread(target=write)
    writer.start()
    end = follow_it()["end"]
    writer.join()
    shown.extend(pipe.new_events())
    pipe.close()
    assert end["state"] == "done"
    assert "".join(event["text"] for event in shown) == "".join(lines)
    assert [event["event"] for event in EventReader(copy).new_events()] == ["end"]
    # a command that attaches now gets the end of the log
    monkeypatch.setattr(follow, "PIECE_BYTES", 2000)
    pipe = OutputPipe(Path(tempfile.mkdtemp(dir=tmp_path)))
    follower(run_dir, tmp_path / "again", output=str(pipe.path)).run()
    first, *rest = pipe.new_events()
    pipe.close()
    assert first["text"] == f"[earlier lines are in {run_dir}/logs on the head]\n"
    text = "".join(event["text"] for event in rest)
    assert text
    assert "".join(lines).endswith(text)


def test_of_long_events_the_ends_and_samples_come_and_then_all_that_is_new(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("WHOLE_BYTES", 100_000), ("FIRST_BYTES", 5000), ("LAST_BYTES", 20_000),
                        ("PART_BYTES", 300), ("COUNT", 20)):  # fmt: skip
        monkeypatch.setattr(samples, name, value)
    monkeypatch.setattr(follow, "WHOLE_BYTES", 100_000)
    notice = '{"event": "notice", "time": 1.0, "message": "%d"}\n'
    file, copy = run_dir / "events.jsonl", tmp_path / "events.jsonl"
    file.write_text("".join(notice % number for number in range(50_000)))
    (run_dir / "supervisor.pid").write_text("0")
    monkeypatch.setattr(follow, "GONE_SECONDS", 0.0)
    with pytest.raises(AnsibleActionFail, match="without an end event"):
        follower(run_dir, copy, file="events.jsonl").run()
    assert copy.stat().st_size == file.stat().st_size
    assert copy.stat().st_blocks * 512 < 500_000 < file.stat().st_size
    EventWriter(run_dir).write("end", state="done", exit_code=0, seconds=1.0)
    assert follower(run_dir, copy, file="events.jsonl").run()["end"]["state"] == "done"
    reader = EventReader(copy)
    said = [event.get("message", "end") for event in reader.new_events()]
    assert sum("are long" in one for one in said) == 1
    seen = [int(one) for one in said if one.isdigit()]
    assert seen == sorted(set(seen))
    assert (seen[0], seen[-1], said[-1]) == (0, 49_999, "end")
    # all samples are copied
    assert sum(after - before > 1 for before, after in pairwise(seen)) >= 21
    assert "damaged" not in "".join(said)
    assert reader.offset == file.stat().st_size
