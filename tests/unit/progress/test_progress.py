import io
import re
import time

import pytest
from rich.console import Console

from ftcluster.ansible.playbook import Kind, TaskEvent
from ftcluster.progress.format import duration, shape, stopped_line
from ftcluster.progress.pictures import run_picture, setup_picture, sparkline
from ftcluster.progress.state import RunProgress, SetupProgress
from ftcluster.progress.view import make_view

START = {
    "event": "start", "world_size": 2, "threads_per_rank": 1, "backend": "gloo",
    "precision": "bf16", "ipex": False, "steps": 20, "epochs": 2.0, "train_samples": 320,
    "parameters": 5,
}  # fmt: skip
STEP = {
    "event": "step", "step": 10, "epoch": 1.0, "loss": 0.5, "learning_rate": 1e-4,
    "samples_per_second": 60.0, "remaining_seconds": 75.0,
}  # fmt: skip
DATA = {
    "event": "data", "columns": {"text": ["body"]},
    "sets": [{"set": "train\nerror: x", "rows": 3, "duplicates": None}],
    "samples": [[{"label": "good\nbad", "parts": [["[CLS] ", False], ["so\nit", True]]}]] * 2,
}  # fmt: skip
NOTICE = {"event": "notice", "message": "3 samples were cut"}
CHECKPOINT = {"event": "checkpoint", "step": 10, "folder": "/opt/run/checkpoints/checkpoint-10"}
EVALUATION = {"event": "evaluation", "step": 10, "epoch": 1.0, "metrics": {"accuracy": 0.9}}


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.2, "0 s"), (59.4, "59 s"), (65, "1:05"), (7384, "2:03:04")]
)
def test_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_setup_counts_by_host() -> None:
    progress = SetupProgress()
    for kind in ("started", "ok", "changed", "skipped"):
        progress.add(TaskEvent(kind, "stack", "t", "n1"))  # type: ignore[arg-type]
    progress.add(TaskEvent("unreachable", "stack", "t", "n2", "no route"))
    progress.add(TaskEvent("ok", "stack", "t", "n1", "take note"))
    n1, n2 = progress.hosts["n1"], progress.hosts["n2"]
    assert (n1.ok, n1.changed, n1.failed) == (2, 1, "")
    assert (n2.failed, n2.unreachable) == ("no route", True)
    assert progress.notices == ["n1: take note"]


def test_run_state_from_events() -> None:
    progress = RunProgress("r")
    for event in (START, STEP, EVALUATION, {"event": "of a later version"}):
        progress.add(event)
    assert progress.state == "running"
    progress.add({"event": "end", "state": "done", "seconds": 3.5, "exit_code": 0})
    assert (progress.state, progress.seconds) == ("done", 3.5)
    assert progress.losses == [0.5]


def test_diffs_are_shown() -> None:
    progress, console = SetupProgress(), Console(file=io.StringIO(), width=10)
    event = TaskEvent(
        "diff", "system", "Write the limits", "n1", "--- before\n+++ after: a long name"
    )
    progress.add(event)
    make_view(False, console).setup_event(progress, event)
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    stage, *diff = shown.splitlines()
    assert stage == "system: set allocator, limits and firewall ..."
    assert diff == ["n1: Write the limits", "--- before", "+++ after: a long name"]


def test_a_restart_is_noted() -> None:
    progress, console = RunProgress("r"), Console(file=io.StringIO())
    restart = {"event": "restart", "restart": 1, "max_restarts": 3, "message": "rank 1 was killed"}
    progress.add(restart)
    make_view(False, console).run_event(progress, "restart")
    assert console.file.getvalue() == "note: restart 1 of 3: rank 1 was killed\n"  # type: ignore[attr-defined]
    progress.add({**restart, "time": 1.0})  # of a night long ago
    make_view(False, console).run_event(progress, "restart")
    said = console.file.getvalue().splitlines()[-1]  # type: ignore[attr-defined]
    assert re.fullmatch(r"note \(\d\d-\d\d \d\d:\d\d:01\): restart 1 of 3: rank 1 was killed", said)


def test_the_picture_says_what_is_done_instead_of_steps() -> None:
    progress = RunProgress("r")
    for event in (START, STEP):
        progress.add(event)

    def shown() -> str:
        console = Console(file=io.StringIO(), width=120)
        console.print(run_picture(progress))
        return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]

    assert "1:15 left" in shown()
    progress.add({"event": "restart", "restart": 1, "max_restarts": 3, "message": "killed"})
    progress.add({"event": "phase", "doing": "waiting for node2 (0:45 of 2:00)"})
    assert "waiting for node2 (0:45 of 2:00)" in shown()
    assert "left" not in shown()
    progress.add(STEP)
    assert "waiting" not in shown()


def test_a_stopped_run_says_how_it_continues() -> None:
    progress = RunProgress(run="r-1")
    assert stopped_line(progress) == "stopped: run r-1; no rank is left running"
    for event in (START, STEP):
        progress.add(event)
    assert stopped_line(progress).endswith(
        "at step 10; no rank is left running; no model was saved"
    )
    progress.add(CHECKPOINT)
    assert CHECKPOINT["folder"] in stopped_line(progress)
    assert stopped_line(progress).endswith("continue it: ftcluster train --resume r-1")


def test_plain_lines_have_the_same_facts_as_the_picture() -> None:
    progress, stream = RunProgress("r"), io.StringIO()
    view = make_view(False, Console(file=stream, width=30))
    for event in (DATA, NOTICE, START, STEP, EVALUATION, CHECKPOINT):
        progress.add(event)
        view.run_event(progress, str(event["event"]))
    lines = stream.getvalue().splitlines()
    assert lines == [
        "train\\nerror: x: 3 rows",
        "samples as the model receives them; target tokens are between « and », and after ->:",
        "  [CLS] «so\\nit» -> good\\nbad",
        "note: 3 samples were cut",
        "training: 2 ranks, 1 thread each, bf16, gloo, 20 steps",
        "step 10/20  epoch 1.00  loss 0.5000  60.0 samples/s  1:15 left",
        "evaluation at step 10: accuracy 0.900",
        "checkpoint of step 10: /opt/run/checkpoints/checkpoint-10 on the head",
    ]
    assert shape(RunProgress("r", start={**START, "ipex": True})) == (
        "2 ranks, 1 thread each, bf16, IPEX, gloo"
    )
    picture = io.StringIO()
    Console(file=picture, width=120).print(run_picture(progress))
    for part in ("step 10/20", "epoch 1.00/2", "loss 0.5000", "60.0 samples/s", "1:15 left",
                 "accuracy 0.900"):  # fmt: skip
        assert part in picture.getvalue()


def test_before_the_first_step_no_speed_and_no_time_is_shown() -> None:
    progress, picture = RunProgress("r"), io.StringIO()
    progress.add(START)
    Console(file=picture, width=120).print(run_picture(progress))
    assert "step 0/20" in picture.getvalue()
    assert "left" not in picture.getvalue()
    assert "samples/s" not in picture.getvalue()


def test_why_a_host_failed_is_left_to_the_error() -> None:
    setup, stream = SetupProgress(), io.StringIO()
    view = make_view(False, Console(file=stream, width=80))
    event = TaskEvent("unreachable", "stack", "Gather facts", "node1", "no route to host")
    setup.add(event)
    view.setup_event(setup, event)
    assert stream.getvalue().splitlines() == [
        "stack: install Python, torch and transformers ...", "node1: unreachable"
    ]  # fmt: skip
    assert setup.hosts["node1"].failed == "no route to host"


def test_live_view_shows_hosts_then_the_run_and_leaves_the_last_picture() -> None:
    stream = io.StringIO()
    view = make_view(False, Console(file=stream, force_terminal=True, width=100, height=20))
    setup = SetupProgress()
    event = TaskEvent("changed", "stack", "Install the packages", "node1", "mind this")
    setup.add(event)
    view.setup_event(setup, event)
    view.tick()
    setup.finished = True
    run = RunProgress("r-1")
    run.add(START)
    view.run_event(run, "start")
    view.close()
    shown = stream.getvalue()
    for part in ("node1", "Install the packages", "note: node1: mind this", "done", "run r-1"):
        assert part in shown


def test_long_tasks_are_reported_at_a_modest_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    stream = io.StringIO()
    view, setup = make_view(False, Console(file=stream)), SetupProgress()

    def send(kind: Kind, text: str, host: str = "n1") -> None:
        task = {"message": text} if kind == "progress" else {"task": text, "stage": "stack"}
        event = TaskEvent(kind, **{"stage": "", "host": host, **task})
        setup.add(event)
        view.setup_event(setup, event)

    send("started", "Create the environment")
    send("started", "Create the environment", "n2")
    send("ok", "Create the environment", "n2")  # n2 waits for n1
    for second in range(36):
        now[0] = 1000.0 + second
        send("progress", f"downloading packages: {second} MB of 450 MB")
        view.tick()
    send("progress", "installing packages: 1.4 GB")
    for second in range(36, 80):
        now[0] = 1000.0 + second
        view.tick()
    send("ok", "Create the environment")
    view.close()
    now[0] += 1000
    view.tick()
    assert stream.getvalue().splitlines() == [
        "stack: install Python, torch and transformers ...",
        "n1: downloading packages: 0 MB of 450 MB",
        "n1: downloading packages: 15 MB of 450 MB",
        "n1: downloading packages: 30 MB of 450 MB",
        "n1: installing packages: 1.4 GB",
        "n1: installing packages: 1.4 GB (for 30 s)",
    ]
    assert setup.hosts["n1"].stage == "stack"


def test_the_picture_shows_the_activity_of_a_long_task() -> None:
    progress, stream = SetupProgress(), io.StringIO()
    progress.add(TaskEvent("started", "stack", "Create the environment", "n1"))
    progress.add(TaskEvent("progress", "", "", "n1", "sending packages: 12 MB of 450 MB"))
    Console(file=stream, width=120).print(setup_picture(progress))
    assert "stack" in stream.getvalue()
    assert "sending packages: 12 MB of 450 MB" in stream.getvalue()


def test_locks_and_repeated_facts_are_no_stages() -> None:
    stream = io.StringIO()
    view, setup = make_view(False, Console(file=stream)), SetupProgress()
    for stage in ("preflight", "lock", "facts again", "unlock"):
        event = TaskEvent("ok", stage, "Take the lock", "n1")
        setup.add(event)
        view.setup_event(setup, event)
    assert stream.getvalue() == "preflight: inspect the hosts ...\n"
    assert setup.hosts["n1"].stage == "preflight"


def test_a_note_is_shown_once_for_all_hosts() -> None:
    stream = io.StringIO()
    view, setup = make_view(False, Console(file=stream)), SetupProgress()
    for host, task, note in (
        ("n2", "Look", "slow"), ("n1", "Look", "slow"), ("n3", "Look", ""), ("n4", "Look", "old"),
        ("n1", "Go", ""), ("n2", "Go", "slow"),
    ):  # fmt: skip
        event = TaskEvent("ok", "preflight", task, host, note)
        setup.add(event)
        view.setup_event(setup, event)
    assert stream.getvalue().splitlines() == [
        "preflight: inspect the hosts ...", "note: n1-n2: slow", "note: n4: old"
    ]  # fmt: skip
    view.close()
    assert stream.getvalue().splitlines()[3:] == ["note: n2: slow"]
    assert len(setup.notices) == 4


def test_sparkline_stretches_and_averages() -> None:
    assert sparkline([0.0, 1.0], 4) == "▁▁██"
    assert sparkline([1.0, 1.0, 1.0], 3) == "▁▁▁"
    assert len(sparkline([float(i) for i in range(1000)], 40)) == 40
    assert sparkline([1.0], 0) == ""
