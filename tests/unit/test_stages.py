from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from ftcluster import stages
from ftcluster.errors import FtclusterError, Interrupted
from ftcluster.inventory import Inventory
from ftcluster.playbooks import Outcome, TaskEvent
from ftcluster.progress.plain import PlainView
from ftcluster.stages import StagesResult, inventory_options, run_stages, stack_name

GIVEN = (
    "--limit", "a,b", "--tags", "stack", "--user", "ops", "--vault-id", "prod@file",
    "--vault-password-file", "pass", "--extra-vars", "x=1", "--check", "--diff",
)  # fmt: skip


def test_the_inventory_gets_what_decides_who_is_in() -> None:
    assert inventory_options(GIVEN) == [
        "--limit", "a,b", "--vault-id", "prod@file", "--vault-password-file", "pass",
    ]  # fmt: skip
    assert inventory_options(("--check",)) == inventory_options(()) == []


def test_one_option_can_be_left_out() -> None:
    assert inventory_options(GIVEN, without="--limit") == [
        "--vault-id", "prod@file", "--vault-password-file", "pass",
    ]  # fmt: skip


def test_an_option_that_is_given_twice_stays_twice() -> None:
    twice = ["--vault-id", "a@f", "--vault-id", "b@g"]
    assert inventory_options(twice) == twice


# --- what the stages tell

LOCKED = TaskEvent("ok", "preflight", host="a", action="ftcluster.cluster.setup_lock")
FAILED = TaskEvent("failed", "stack", task="Install", host="a", message="no space")
Playbooks = Callable[..., list[tuple[str, list[str]]]]


@pytest.fixture
def playbooks(monkeypatch: pytest.MonkeyPatch) -> Playbooks:
    """Playbooks that have these events and end so; tells which were run with which options."""

    def prepare(*events: TaskEvent, state: Any = "done") -> list[tuple[str, list[str]]]:
        ran: list[tuple[str, list[str]]] = []

        def run_playbook(
            playbook: str, _path: Path, _vars: object, on_event: Callable[[TaskEvent], None],
            *, options: list[str], **_: object,
        ) -> Outcome:  # fmt: skip
            ran.append((playbook.rpartition(".")[2], list(options)))
            for event in events if len(ran) == 1 else ():
                on_event(event)
            return Outcome(state if len(ran) == 1 else "failed", "said")

        monkeypatch.setattr(stages, "run_playbook", run_playbook)
        return ran

    monkeypatch.setattr(stages, "read_inventory", lambda path, _: Inventory(path, ("a", "b")))
    return prepare


def run(*options: str) -> StagesResult:
    return run_stages("setup", Path("/i.ini"), options, PlainView(Console(), verbose=False))


def test_the_stack_in_use_and_why_it_was_chosen(playbooks: Playbooks) -> None:
    choice = {"torch_stack_choice": {"why": "it is the default"}}
    link = {"current": "/opt/ftcluster/stacks/intel-2.8-1b2c3d4e5f60"}
    playbooks(
        TaskEvent("ok", "preflight", host="a", result={"ansible_facts": choice}),
        TaskEvent("ok", "verify", host="a", action="ftcluster.cluster.stack_link", result=link),
    )
    result = run()
    assert (result.stack, result.stack_why) == ("intel-2.8", "it is the default")


def test_where_no_stage_looked_no_stack_is_told(playbooks: Playbooks) -> None:
    playbooks(TaskEvent("ok", "system", host="a", result={"current": "not a stack's"}))
    result = run()
    assert (result.stack, result.stack_why) == ("", "")


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("/opt/ftcluster/stacks/native-1b2c3d4e5f60", "native"),
        ("/opt/ftcluster/stacks/intel-1.13.1-1b2c3d4e5f60", "intel-1.13.1"),
        ("", ""),
    ],
)
def test_the_stack_of_a_folder(folder: str, name: str) -> None:
    assert stack_name(folder) == name


@pytest.mark.parametrize(
    ("state", "error", "words"),
    [
        ("failed", FtclusterError, "setup failed on 1 of 2 hosts\n  a: Install: no space"),
        ("stopped", Interrupted, "stopped: setup is not finished"),
        ("timeout", FtclusterError, "setup was given up after"),
    ],
)
def test_a_setup_that_does_not_end_well_lets_the_next_one_in(
    playbooks: Playbooks, state: str, error: type[Exception], words: str
) -> None:
    ran = playbooks(LOCKED, FAILED, state=state)
    with pytest.raises(error) as caught:  # also where letting it in fails
        run("--user", "ops", "--tags", "stack")
    assert words in str(caught.value)
    options = ["--user", "ops", "--tags", "stack"]
    assert ran == [("setup", options), ("unlock", [*options, "--tags", "verify"])]


def test_one_that_was_refused_or_ended_well_has_nothing_to_give_back(playbooks: Playbooks) -> None:
    refused = TaskEvent("failed", "preflight", host="a", action="x.setup_lock", message="another")
    ran = playbooks(refused, state="failed")
    with pytest.raises(FtclusterError, match="another"):
        run()
    assert len(ran) == 1
    ran = playbooks(LOCKED)
    run()
    assert len(ran) == 1
