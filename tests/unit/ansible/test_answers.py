"""Results of a hostile host: each is accepted only from its own task and in its valid form."""

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftcluster.ansible import answers
from ftcluster.ansible.answers import Answer, take
from ftcluster.ansible.inventory import Inventory
from ftcluster.ansible.playbook import TaskEvent, read_event
from ftcluster.errors import FtclusterError
from ftcluster.launch.record import record_dir
from ftcluster.provision.stages import StagesResult
from ftcluster_common.protocol.run_state import MOST_ROWS_BYTES, RunState, pack
from tests.fuzz.parsers import DATA_SAID
from tests.unit.answers import answer_event
from tests.unit.shell import Said

RUN = "quickstart-20260131-101500-7f3a"
STATE = RunState(RUN, "done", "quickstart", ("a",), 1, 2, 3, time.time(), 9.5, "", "", "me")
ROW = asdict(STATE) | {"hosts": ["a"]}
STACK = {
    "stack": "native-1b2c3d4e5f60", "python": "3.11.2", "glibc": "2.36", "machine": "x86_64",
    "packages": [{"name": "torch", "version": "2.8.0", "extras": []}],
}  # fmt: skip
ALL = [one for one in vars(answers).values() if isinstance(one, Answer)]
WORDS = st.sampled_from([
    "..", "../x", "/etc", "a/b", "", ".", "-rf", ".hidden", "a\nb", "a\0b", "\ud800", "x" * 5000,
    "é", "{{ 1 }}", "\u202etxt", "$(id)", "a b", "~root",
])  # fmt: skip
HOSTILE = st.recursive(
    st.none() | st.booleans() | WORDS | st.integers() | st.floats() | st.just(1 << 4000),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=5,
)


def page(*rows: Any, left: Any = 0) -> str:
    return json.dumps({"runs": pack(rows), "left": left})


def event(answer: Answer[Any], value: Any, **changes: Any) -> TaskEvent:
    return answer_event(answer, value, "node1", **changes)


def taken_or_refused(answer: Answer[Any], value: Any) -> Any:
    """Return the accepted answer; None if it is refused with a message of one line."""
    refused = ""
    try:
        taken = take(answer, event(answer, value))
    except FtclusterError as error:
        taken, refused = None, error.message
    assert "\n" not in refused
    assert bool(taken) != bool(refused)
    return taken[0] if taken else None


GOOD = {
    answers.RUNS_LISTED: page(ROW), answers.JOBS_FOUND: {RUN: {}}, answers.STACK_DESCRIBED: STACK,
    answers.CACHES_FOUND: {"models": [5, 3]}, answers.SCRIPT_FOUND: True, answers.HOSTS: ["a"],
    answers.TABLE: ["a"], answers.RUN_STOPPED: f"stopped\n{page(ROW)}\n",
    answers.PROBLEMS: [{"what": "a"}], answers.NOTICES: [], answers.CURRENT: "/a",
    answers.PREVIOUS: "/a", answers.DATA_READ: {"report": DATA_SAID, "notices": []},
    answers.MEASURED: "{}", answers.RECORDED: "{}",
    answers.SYSTEM: "a", answers.LACKS: ["tcmalloc"], answers.ORPHANS: [],
}  # fmt: skip


@pytest.mark.parametrize("answer", [*ALL, answers.clean_removed([RUN])], ids=lambda one: one.task)
def test_only_the_task_that_asks_answers(answer: Answer[Any]) -> None:
    value = GOOD.get(answer, [RUN] if answer.key == "clean_removed" else {"a": "b"})
    assert take(answer, event(answer, value)) is not None
    command = "ansible.builtin.command"
    assert take(answer, event(answer, value, action=command)) is None
    assert take(answer, event(answer, value, task="List runs", action=command)) is None
    assert take(answer, event(answer, value, task="Another")) is None
    assert take(answer, event(answer, value, kind="failed")) is None


def test_facts_that_a_module_claims_are_none_of_a_setup() -> None:
    claimed = {"preflight_facts": {"prefix": "/"}, "cluster_hosts": ["x"], "verify_table": ["x"]}
    for action in ("ansible.builtin.command", "ftcluster.cluster.host_facts"):
        claim = TaskEvent("ok", "preflight", action=action, result={"ansible_facts": claimed})
        result = StagesResult(Inventory((), ("node1",), ("node1",)))
        result.add(claim)
        assert (result.facts, result.table) == ({}, [])
        assert result.inventory.hosts == ("node1",)


@pytest.mark.parametrize(
    "changes",
    [
        {"run": "/etc"}, {"run": "../x"}, {"run": ".."}, {"run": "a/b"}, {"run": "a\n"}, {"run": 1},
        {"run": ""}, {"run": "a" * 200}, {"run": "é"}, {"run": ["a"]},
        {"state": "sleeping"}, {"state": {}}, {"hosts": "abc"}, {"hosts": [1]}, {"hosts": None},
        {"ranks": 1.5}, {"step": True}, {"steps": 10**400}, {"step": -2}, {"started": 1e300},
        {"started": float("nan")}, {"seconds": float("inf")}, {"seconds": "1"},
        {"model": "model"}, {"model": "/a/../../etc"}, {"model": "/a\nb"}, {"checkpoint": 7},
        {"recipe": "r" * 5000}, {"started_by": None},
    ],
)  # fmt: skip
def test_a_row_in_another_form_is_refused_with_its_host(changes: dict[str, Any]) -> None:
    with pytest.raises(FtclusterError, match=r"^node1: invalid answer: ") as caught:
        take(answers.RUNS_LISTED, event(answers.RUNS_LISTED, page({**ROW, **changes})))
    assert "\n" not in caught.value.message
    assert len(caught.value.message) < 250


@pytest.mark.parametrize(
    "changes",
    [
        {"stack": "../x"}, {"python": "3.11 --index-url=x"}, {"glibc": "2"}, {"machine": "x/y"},
        {"packages": {}}, {"packages": [{"name": "a", "version": 1, "extras": []}]},
        {"packages": [{"name": "a", "version": "1", "extras": [1]}]},
    ],
)  # fmt: skip
def test_a_stack_in_another_form_is_refused(changes: dict[str, Any]) -> None:
    answer = answers.STACK_DESCRIBED
    with pytest.raises(FtclusterError, match=r"^node1: invalid answer: "):
        take(answer, event(answer, {**STACK, **changes}))


@pytest.mark.parametrize("value", [
    None, {}, [ROW], "[]", "", "{", "[" * 5000, {"runs": pack([ROW]), "left": 0}, page(1), page({}),
    page(ROW, ROW), page([ROW]), page(ROW, left=-1),
    page(ROW, left="1"), page(left=5), *map(json.dumps, (
        {"runs": [ROW]}, {"runs": [ROW], "left": 0}, {"runs": "x", "left": 0},
        {"runs": pack([ROW])[:-8], "left": 0}, {"runs": pack("x" * MOST_ROWS_BYTES), "left": 0},
    )),
])  # fmt: skip
def test_a_list_in_another_form_is_refused(value: Any) -> None:
    with pytest.raises(FtclusterError, match=r"^node1: invalid answer: "):
        take(answers.RUNS_LISTED, event(answers.RUNS_LISTED, value))


def test_a_head_of_an_earlier_version_says_only_whether_a_run_was_stopped() -> None:
    for said in ("stopped\n", "not running\n"):
        assert take(answers.RUN_STOPPED, event(answers.RUN_STOPPED, said)) == (((), 0),)


@given(HOSTILE, st.sampled_from(sorted(ROW)))
def test_whatever_a_row_says_it_is_safe_or_refused(value: Any, name: str) -> None:
    taken = taken_or_refused(answers.RUNS_LISTED, page({**ROW, name: value}))
    if taken is None:
        return
    ((row,), _) = taken
    assert record_dir(row.run).parent.name == "runs"
    assert ".." not in Path(row.model).parts + Path(row.checkpoint).parts
    json.dumps(row.to_dict())


@given(HOSTILE)
def test_whatever_is_answered_it_is_refused_in_one_line(value: Any) -> None:
    for answer in (*ALL, answers.clean_removed([RUN])):
        for shown in (value, [value], {RUN: value}, {**STACK, "packages": value}):
            taken_or_refused(answer, shown)


def test_clean_takes_only_what_it_asked_for() -> None:
    answer = answers.clean_removed([RUN])
    for value in (["other-run"], ["/tmp/x"], RUN):
        with pytest.raises(FtclusterError, match="invalid answer"):
            take(answer, event(answer, value))


def test_an_answer_that_is_too_large_says_so(said: Said) -> None:
    # ansible-runner replaces results above its limit by this text
    with pytest.raises(FtclusterError) as caught:
        take(answers.RUNS_LISTED, event(answers.RUNS_LISTED, [], result={}))
    said(caught.value)


def test_an_answer_that_is_nested_deeply_is_a_failure_of_its_host() -> None:
    deep: Any = []
    for _ in range(5000):
        deep = [deep]
    data = {"host": "node1", "task": "t", "res": {"x": deep}}
    found = read_event({"event": "runner_on_ok", "event_data": data})
    assert found is not None
    assert (found.kind, found.host, found.result) == ("failed", "node1", {})
    assert "nested too deeply" in found.message


@pytest.mark.parametrize("run", ["/etc", "..", "a/b", "", "a\n"])
def test_no_folder_of_a_record_is_outside_of_the_records(run: str) -> None:
    with pytest.raises(FtclusterError, match="is not the id of a run"):
        record_dir(run)
