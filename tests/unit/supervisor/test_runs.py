"""The list of runs that a head reports."""

import json
import os
import socket
import subprocess
import time
from pathlib import Path

import pytest

from ftcluster_common.protocol.job import ScriptJob
from ftcluster_common.protocol.run_state import RunState, unpack
from ftcluster_train.io.events import EventWriter, has_ended, read_events
from ftcluster_train.supervisor import runs as runs_module
from ftcluster_train.supervisor.runs import (
    clear_caches,
    find_jobs,
    list_runs,
    packed_page,
    read_run,
    remove_runs,
)

RUN = "quickstart-20260131-101500-4d1e"


def make_run(folder: Path, run: str, *events: dict[str, object]) -> Path:
    path = folder / run
    path.mkdir(parents=True)
    (path / "job.json").write_text(json.dumps({"recipe": {"name": "quickstart"}}))
    hosts = [{"name": "node0", "ranks": [{}, {}]}, {"name": "node1", "ranks": [{}]}]
    (path / "launch.json").write_text(
        json.dumps(
            {"hosts": hosts, "started_by": "ops on b", "env": {"FTCLUSTER_TAGS": "team=nlp"}}
        )
    )
    lines = [json.dumps({"time": 100.0 + number, **event}) for number, event in enumerate(events)]
    (path / "events.jsonl").write_text("\n".join(lines) + "\n")
    return path


START = {"event": "start", "steps": 50}
STEP = {"event": "step", "step": 20}
RESULT = {"event": "result", "model": "/m"}
END = {"event": "end", "state": "done"}


def test_an_ended_run(tmp_path: Path) -> None:
    make_run(tmp_path, RUN, START, STEP, {"event": "checkpoint", "folder": "/c"}, RESULT, END)
    ((run,), left) = list_runs(tmp_path)
    assert left == 0
    assert (run.checkpoint, run.tags) == ("/c", "team=nlp")
    assert (run.run, run.state, run.recipe) == (RUN, "done", "quickstart")
    assert (run.hosts, run.ranks, run.started_by) == (("node0", "node1"), 3, "ops on b")
    assert (run.step, run.steps, run.started, run.seconds, run.model) == (20, 50, 100.0, 4.0, "/m")


def test_no_run_takes_a_negative_time_if_the_clock_was_set_back(tmp_path: Path) -> None:
    path = make_run(tmp_path, RUN, START)
    with (path / "events.jsonl").open("a") as file:
        file.write(json.dumps({**END, "time": 40.0}) + "\n")
    ((run,), _) = list_runs(tmp_path)
    assert (run.state, run.started, run.seconds) == ("done", 100.0, 0.0)


def test_the_expected_end_of_a_run_that_does_steps(tmp_path: Path) -> None:
    step = {**STEP, "remaining_seconds": 90.0}
    again = {"event": "restart", "restart": 1, "max_restarts": 3, "message": "x"}
    for number, (events, ends) in enumerate(
        [((START, step), 191.0), ((START, STEP), 0.0), ((step, again), 0.0), ((step, END), 0.0)]
    ):
        make_run(tmp_path / str(number), RUN, *events)
        assert read_run(tmp_path / str(number) / RUN, True).ends == ends
        assert read_run(tmp_path / str(number) / RUN, False).ends == 0


def test_a_run_without_an_end_is_running_only_if_it_has_processes(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    make_run(runs, RUN, START, STEP)
    assert [run.state for run in list_runs(runs)[0]] == ["failed"]
    rank = subprocess.Popen(["sleep", "60"], env={**os.environ, "FTCLUSTER_RUN": RUN})
    try:
        time.sleep(0.1)
        (run,), _ = list_runs(runs)
        assert run.state == "running"
        assert run.seconds > 1000
        assert remove_runs(runs, [RUN]) == []
    finally:
        rank.kill()
        rank.wait()
    assert remove_runs(runs, [RUN, "unknown", "../runs"]) == [RUN]
    assert list_runs(runs) == ([], 0)


def test_a_run_that_was_never_launched_says_so(tmp_path: Path) -> None:
    """Read a run whose command copies data, or was killed meanwhile."""
    path = make_run(tmp_path, RUN)
    (path / "launch.json").rename(path / "planned.json")
    (path / "events.jsonl").unlink()
    run = read_run(path, alive=False)
    assert (run.state, run.hosts, run.doing) == ("failed", (), "")
    assert run.why.startswith("it was not launched, and no files are being copied for it: ")
    assert read_run(path, alive=True).why == "", "it prepares model and data"
    (path / "planned.json").rename(path / "launch.json")
    assert (read_run(path, alive=False).doing, read_run(path, alive=False).why) == (
        "interrupted",
        "",
    )


def test_a_run_whose_files_are_being_copied_is_running(tmp_path: Path) -> None:
    runs, data = tmp_path / "runs", tmp_path / "data/mrpc-4f7d1c0b2a9e"
    for name in ("killed-20260131-101500-aaaa", RUN):  # both train on the same data
        path = make_run(runs, name)
        (path / "launch.json").rename(path / "planned.json")
        (path / "events.jsonl").unlink()
        (path / "job.json").write_text(json.dumps({"recipe": {"data": str(data)}}))
        os.utime(path / "job.json", (100.0 + (name == RUN),) * 2)

    def states() -> list[str]:
        return [f"{run.run[:6]} {run.state}" for run in list_runs(runs)[0]]

    assert states() == ["quicks failed", "killed failed"]
    part = data.with_name(f"{data.name}.new-0123abcd")  # as plugins/action/push.py names it
    part.mkdir(parents=True)
    (part / "train.jsonl").write_text("{}")
    assert states() == ["quicks running", "killed failed"]
    assert remove_runs(runs, [RUN]) == []
    for path in (part, part / "train.jsonl"):  # the command was killed, or its connection is lost
        os.utime(path, (time.time() - 60,) * 2)
    assert states() == ["quicks failed", "killed failed"]
    (part / "train.jsonl").write_text("{}\n{}")
    part.rename(data)
    assert states() == ["quicks failed", "killed failed"]


def test_a_script_whose_folder_is_being_copied_is_running(tmp_path: Path) -> None:
    runs, script = tmp_path / "runs", tmp_path / "scripts/glue-4f7d1c0b2a9e"
    path = make_run(runs, RUN)
    for name in ("launch.json", "events.jsonl"):  # the launch follows the copy
        (path / name).unlink()
    job = ScriptJob(RUN, str(tmp_path), ("run_glue.py",), f"{path}/script")
    (path / "job.json").write_text(json.dumps(job.to_dict()))
    (path / "copies.json").write_text(json.dumps([str(script)]))
    assert [run.state for run in list_runs(runs)[0]] == ["failed"]
    part = script.with_name(f"{script.name}.new-0123abcd")  # as plugins/action/push.py names it
    part.mkdir(parents=True)
    assert [(run.state, run.why) for run in list_runs(runs)[0]] == [("running", "")]
    part.rename(script)
    assert [run.state for run in list_runs(runs)[0]] == ["failed"]


def test_the_newest_run_is_first_and_damage_is_survived(tmp_path: Path) -> None:
    make_run(tmp_path, "old-20250101-000000-aaaa", {**START, "time": 5.0}, {**END, "time": 6.0})
    new = make_run(tmp_path, RUN, START)
    (new / "job.json").write_text("{")
    (new / "launch.json").write_text("[]")
    (tmp_path / ".hidden.removed").mkdir()
    (tmp_path / "empty").mkdir()
    runs = {run.run: run for run in list_runs(tmp_path)[0]}
    assert list(runs) == ["empty", RUN, "old-20250101-000000-aaaa"]
    assert (runs[RUN].recipe, runs[RUN].hosts) == ("quickstart", ())


def test_the_last_step_of_thousands_of_ranks_is_seen(tmp_path: Path) -> None:
    """The next event has two times for each rank."""
    times = [12345.678901] * 4096
    events = []
    for number in range(1, 10):
        events += [
            {**STEP, "step": number},
            {
                "event": "communication",
                "time": 1.0,
                "waited_seconds": times,
                "input_seconds": times,
            },
        ]
    found = read_events(make_run(tmp_path, RUN, START, *events))
    assert found[0]["event"] == "start"
    assert [one["step"] for one in found if one["event"] == "step"][-1] == 9
    assert [one["event"] for one in found].count("start") == 1


@pytest.mark.parametrize("steps", [0, 10, 5000])
def test_both_ends_of_a_long_file_are_read(tmp_path: Path, steps: int) -> None:
    events = [{**STEP, "step": number, "more": "x" * 100} for number in range(steps)]
    path = make_run(tmp_path, RUN, START, *events, END)
    found = read_events(path)
    assert (found[0]["event"], found[-1]["event"]) == ("start", "end")
    if steps:
        assert [one["step"] for one in found if one["event"] == "step"][-1] == steps - 1
    assert len(found) == len({json.dumps(one) for one in found})
    with (path / "events.jsonl").open("a") as file:
        file.write('{"event": "st')
    assert read_events(path) == found


def test_no_answer_grows_with_the_number_of_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [f"r{number:04}-20260131-101500-7f3a" for number in range(1700)]
    for number, name in enumerate(runs):
        path = make_run(tmp_path, name, START, STEP, RESULT, END)
        os.utime(path / "job.json", (number, number))
    monkeypatch.setattr("ftcluster_train.supervisor.runs.PAGE_BYTES", 5000)
    pages, skip, left = [], 0, 1
    while left:
        page = packed_page(*list_runs(tmp_path, skip=skip))
        assert len(json.dumps(page)) < 5100
        rows, left = unpack(page["runs"]), page["left"]
        skip += len(rows)
        pages.append(rows)
    assert [one["run"] for page in pages for one in page] == runs[::-1]
    assert len(pages) > 1
    page, left = list_runs(tmp_path, most=3)
    assert ([one.run for one in page], left) == (runs[:-4:-1], 1697)
    page, left = list_runs(tmp_path, ["r12", "r0001"], most=2)
    assert ([one.run[:5] for one in page], left) == (["r1299", "r1298"], 99)
    assert len(find_jobs(tmp_path, "r")) == 20
    assert list_runs(tmp_path, skip=1800) == ([], 0)  # `clean` has removed some runs meanwhile


def test_an_ended_run_is_read_once_and_whatever_the_index_says_it_is_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a-1", "b-1"):
        make_run(tmp_path, name, START, END)
    make_run(tmp_path, "c-1", START)
    listed = list_runs(tmp_path)
    read = runs_module.run_there
    again: list[str] = []

    def run_there(path: Path, alive: bool) -> RunState:
        again.append(path.name)
        return read(path, alive)

    monkeypatch.setattr(runs_module, "run_there", run_there)
    assert list_runs(tmp_path) == listed
    assert again == []
    # written by a supervisor that was restarted
    EventWriter(tmp_path / "c-1").write("end", **FINISH)
    assert {one.run: one.state for one in list_runs(tmp_path)[0]} == {
        "a-1": "done", "b-1": "done", "c-1": "done",
    }  # fmt: skip
    assert again == ["c-1"]
    remove_runs(tmp_path, ["b-1"])
    listed = list_runs(tmp_path)
    index = tmp_path / ".ended.json"
    for damage in ("", "{", "[]", "[" * 50_000, '{"version": 1, "runs": 5}'):
        index.write_text(damage)
        assert list_runs(tmp_path) == listed
    for row in (None, 5, [], [1, 2, 3], {"0": 1}):
        found = json.loads(index.read_text())
        index.write_text(json.dumps({**found, "runs": {**found["runs"], "a-1": row}}))
        assert list_runs(tmp_path) == listed


def test_the_run_of_just_that_id_comes_first(tmp_path: Path) -> None:
    for run in ("a-1", *(f"a-1{number}" for number in range(30))):
        make_run(tmp_path, run)
    assert list_runs(tmp_path, ["a-1"], most=1)[0][0].run == "a-1"


def test_jobs_are_found_by_the_beginning_of_their_ids(tmp_path: Path) -> None:
    for run in ("a-1", "a-12", "b-1"):
        make_run(tmp_path, run)
    job = {"recipe": {"name": "quickstart"}, "saved": False}
    assert find_jobs(tmp_path, "a") == {"a-1": job, "a-12": job}
    assert find_jobs(tmp_path, "a-1") == {"a-1": job}
    assert find_jobs(tmp_path, "c") == find_jobs(tmp_path / "none", "a") == {}


def test_a_job_says_whether_it_or_one_that_it_continues_has_saved_a_state(tmp_path: Path) -> None:
    make_run(tmp_path, "a-1")
    state = tmp_path / "a-1/snapshots/state-7"
    state.mkdir(parents=True)
    assert not find_jobs(tmp_path, "a-1")["a-1"]["saved"]  # the checkpoint is incomplete
    (state / "manifest.json").touch()
    assert find_jobs(tmp_path, "a-1")["a-1"]["saved"]
    (make_run(tmp_path, "a-2") / "job.json").write_text(json.dumps({"resume": ["a-1"]}))
    assert find_jobs(tmp_path, "a-2")["a-2"]["saved"]
    (tmp_path / "a-2/job.json").write_text(json.dumps({"resume": 5}))
    assert not find_jobs(tmp_path, "a-2")["a-2"]["saved"]


def test_a_run_of_a_slurm_job_may_be_on_another_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs, programs = tmp_path / "runs", tmp_path / "bin"
    (runs / "r-1").mkdir(parents=True)
    (runs / "r-1/launch.json").write_text(json.dumps({"slurm_job": "12"}))
    assert [one.state for one in list_runs(runs)[0]] == ["failed"]  # there is no squeue
    programs.mkdir()
    (programs / "squeue").write_text('#!/bin/sh\n[ "$3" = --jobs=12 ] && cat "$0.txt"\n')
    (programs / "squeue").chmod(0o755)
    # the last task of an array has the array's id; squeue lists the other tasks too
    (programs / "squeue.txt").write_text("11 12_0 COMPLETED\n12 12_1 RUNNING\n")
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    assert [one.state for one in list_runs(runs)[0]] == ["running"]
    assert remove_runs(runs, ["r-1"]) == []
    (programs / "squeue.txt").write_text("11 12_0 RUNNING\n")
    assert [one.state for one in list_runs(runs)[0]] == ["failed"]
    fails = '#!/bin/sh\necho "slurm_load_jobs error: {}" >&2\nexit 1\n'
    for why, state in (("Unable to contact slurm controller", "running"),
                       ("Invalid job id specified", "failed")):  # fmt: skip
        (programs / "squeue").write_text(fails.format(why))
        assert [one.state for one in list_runs(runs)[0]] == [state]
    EventWriter(runs / "r-1").write("end", state="stopped", exit_code=143, seconds=1.0)
    assert [one.state for one in list_runs(runs)[0]] == ["stopped"]
    assert remove_runs(runs, ["r-1"]) == ["r-1"]


FINISH = {"state": "done", "exit_code": 0, "seconds": 1.0}


def test_an_event_after_a_torn_line_begins_on_its_own(tmp_path: Path) -> None:
    events = EventWriter(tmp_path)
    events.write("phase", doing="x")
    file = tmp_path / "events.jsonl"
    file.write_bytes(file.read_bytes() + b'{"event": "st')
    assert not has_ended(tmp_path)
    events.write("end", **FINISH)
    assert has_ended(tmp_path)
    assert [event["event"] for event in read_events(tmp_path)] == ["phase", "end"]
    # a truncated end event does not count
    file.write_bytes(file.read_bytes()[:-1])
    assert not has_ended(tmp_path)


@pytest.mark.parametrize(
    "line",
    [
        b"no json", b"[" * 50_000, b'{"event": "end"', b'{"event": "step", "time": "x"}',
        b'{"event": "start", "time": NaN, "steps": []}', b"\xff\xfe", b"{}", b"\x85\x0c",
    ],
)  # fmt: skip
def test_an_end_is_found_beside_damaged_lines(tmp_path: Path, line: bytes) -> None:
    file = tmp_path / "events.jsonl"
    file.write_bytes(line + b"\n")
    EventWriter(tmp_path).write("end", **FINISH)
    file.write_bytes(file.read_bytes() + line + b"\n" + line)
    assert has_ended(tmp_path)
    assert read_run(tmp_path, False).state == "done"


def test_the_end_is_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    EventWriter(tmp_path).write("phase", doing="x")
    assert synced == []
    EventWriter(tmp_path).write("end", **FINISH)
    assert len(synced) == 1


@pytest.mark.parametrize(
    "document", ["[1]", '{"hosts": 1}', '{"hosts": [1]}', '{"hosts": [{"name": "a", "ranks": 1}]}']
)
def test_a_damaged_run_hides_no_other(tmp_path: Path, document: str) -> None:
    for name in ("a-1", "b-1", "no run", "..."):
        (tmp_path / name).mkdir()
    (tmp_path / "a-1" / "launch.json").write_text(document)
    assert sorted(one.run for one in list_runs(tmp_path)[0]) == ["a-1", "b-1"]


def test_caches_are_emptied_but_for_what_a_run_uses(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    names = ("models/used", "models/us\u00e9d", "models/free", "data/used", "data/free",
             "cache/tokens/used", "cache/tokens/free", "models/.locks")  # fmt: skip
    for name in names:
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "file").write_bytes(b"x" * 10_000)
    (tmp_path / "models/link").symlink_to(tmp_path / "models/used")
    ended = make_run(runs, "a-1", START, END)
    (ended / "inputs.json").write_text(json.dumps({"model": f"{tmp_path}/models/free"}))
    goes_on = make_run(runs, "b-1", START)
    (goes_on / "inputs.json").write_text(
        json.dumps({"samples": f"{tmp_path}/cache/tokens/used", "model": f"{tmp_path}/models/used"})
    )
    model = {"model": f"{tmp_path}/models/us\u00e9d", "data": f"{tmp_path}/data/used"}
    (goes_on / "job.json").write_text(json.dumps({"recipe": model}))
    prepares = make_run(runs, "c-1")
    sizes = clear_caches(runs, [], keep=False)  # cached files that a preparing run may use
    assert {whole > 0 and unused == 0 for whole, unused in sizes.values()} == {True}
    for path in (goes_on, prepares):
        os.utime(path / "job.json", (1, 1))
    # the run was made long ago and waits for its head on this host
    sizes = clear_caches(runs, ["b-1"], keep=True)
    assert all((tmp_path / name).exists() for name in names)
    assert clear_caches(runs, ["b-1"], keep=False) == sizes
    left = {name for name in names if (tmp_path / name).exists()}
    assert left == {name for name in names if "free" not in name}
    assert not (tmp_path / "models/link").exists()
    assert sizes["data"][0] > sizes["data"][1] > 10_000
    killed = tmp_path / f"models/.m.{socket.gethostname().replace('.', '-')}.abcdefgh.scratch"
    killed.mkdir()
    clear_caches(runs, [], keep=True)
    assert killed.exists()
    assert [unused for _, unused in clear_caches(runs, ["b-1"], keep=False).values()] == [0, 0, 0]
    assert not killed.exists()
