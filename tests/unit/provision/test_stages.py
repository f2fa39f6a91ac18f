from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from ftcluster.ansible.answers import CHOICE, CURRENT, HOSTS
from ftcluster.ansible.inventory import Inventory
from ftcluster.ansible.playbook import REFUSE, PlaybookOutcome, TaskEvent
from ftcluster.ansible.playbooks import Rollback, Setup, Teardown
from ftcluster.cluster.saved import Cluster, remember
from ftcluster.errors import FtclusterError, Interrupted
from ftcluster.progress.view import make_view
from ftcluster.provision import stages
from ftcluster.provision.stages import StagesResult, run_stages, stack_name
from tests.unit.answers import answer_event
from tests.unit.clusters import cluster, host

# --- messages of the stages

LOCKED = TaskEvent("ok", "preflight", host="a", action="ftcluster.cluster.setup_lock")
FAILED = TaskEvent("failed", "stack", task="Install", host="a", message="no space")
Ran = list[tuple[str, list[str], dict[str, Any]]]
Playbooks = Callable[..., Ran]


def read_inventory(paths: tuple[Path, ...], _: object, pattern: str) -> Inventory:
    return Inventory(paths, ("a", "b"), ("a", "b", "c"), pattern)


@pytest.fixture
def playbooks(monkeypatch: pytest.MonkeyPatch) -> Playbooks:
    """Replace playbooks by these events and this end; record their arguments."""

    def prepare(*events: TaskEvent, state: Any = "done") -> Ran:
        ran: Ran = []

        def run_playbook(
            playbook: str, _paths: object, variables: dict[str, Any],
            on_event: Callable[[TaskEvent], None],
            *, options: list[str], **_: object,
        ) -> PlaybookOutcome:  # fmt: skip
            ran.append((playbook.rpartition(".")[2], list(options), variables))
            for event in events if len(ran) == 1 else ():
                on_event(event)
            return PlaybookOutcome(state if len(ran) == 1 else "failed", "said")

        monkeypatch.setattr(stages, "run_playbook", run_playbook)
        return ran

    monkeypatch.setattr(stages, "read_inventory", read_inventory)
    return prepare


def run(*options: str) -> StagesResult:
    return run_stages(Setup(), (Path("/i.ini"),), options, make_view(False, Console()))


def test_the_stack_in_use_and_why_it_was_chosen(playbooks: Playbooks) -> None:
    playbooks(
        answer_event(CHOICE, {"why": "it is the default"}),
        answer_event(CURRENT, "/opt/ftcluster/stacks/intel-2.8-1b2c3d4e5f60"),
    )
    result = run()
    assert (result.stack, result.stack_why) == ("intel-2.8", "it is the default")
    # and the head's name
    playbooks(answer_event(HOSTS, ["c", "b", "a"]))
    inventory = run().inventory
    assert (inventory.head, inventory.hosts) == ("c", ("b", "a"))
    assert stack_name("/opt/ftcluster/stacks/intel-1.13.1-1b2c3d4e5f60") == "intel-1.13.1"
    assert stack_name("") == ""


@pytest.mark.parametrize(
    ("off", "hosts", "without"), [("b", "ab", "!b"), ("a", "ab", ""), ("b", "abc", "")]
)
def test_a_host_that_is_off_can_be_left_out_unless_it_is_the_head(
    playbooks: Playbooks, monkeypatch: pytest.MonkeyPatch, off: str, hosts: str, without: str
) -> None:
    found = Inventory((Path("/i.ini"),), ("a", "b"), tuple(hosts))  # of all hosts, or of --limit
    monkeypatch.setattr(stages, "read_inventory", lambda *_: found)
    events = [TaskEvent("ok", "preflight", host=name) for name in "ab" if name != off]
    playbooks(*events, TaskEvent("unreachable", "preflight", host=off), state="failed")
    with pytest.raises(FtclusterError) as caught:
        run()
    assert caught.value.hint.partition("add --limit ")[2] == (f"'{without}'" if without else "")


def test_the_hosts_that_are_meant_stay_so(playbooks: Playbooks) -> None:
    found = (host("a"), host("b"), host("c", network_address="10.0.0.3"))
    remember(Cluster((Path("/i.ini"),), cluster(*found), (), "xeons"))
    ran = playbooks(LOCKED, FAILED, state="failed")
    with pytest.raises(FtclusterError):
        run("--user", "ops")
    known = {"ftcluster_hosts": "xeons", "cluster_known_addresses": {"c": "10.0.0.3"}}
    assert [(name, variables) for name, _, variables in ran] == [
        ("setup", known),
        ("unlock", known),
    ]
    ran = playbooks()
    run_stages(Teardown(), (Path("/other.ini"),), (), make_view(False, Console()))
    assert ran == [("teardown", [], {})]


def test_what_was_found_of_hosts_that_are_left_out_still_holds(playbooks: Playbooks) -> None:
    found = (host("c", network_address="10.0.0.3"), host("a"), host("b"), host("gone"))
    remember(Cluster((Path("/i.ini"),), cluster(*found)))
    ran = playbooks()
    run("--limit", "a,b")
    known = {"cluster_known_addresses": {"c": "10.0.0.3"}}
    assert ran == [("setup", ["--limit", "a,b"], known)]


@pytest.mark.parametrize(
    ("state", "error", "words"),
    [
        ("failed", FtclusterError, "setup failed on 1 of 2 hosts\n  a: Install: no space"),
        ("stopped", Interrupted, "stopped: setup is not finished"),
        ("timeout", FtclusterError, "setup took longer than 3600 s"),
    ],
)
def test_a_setup_that_does_not_end_well_lets_the_next_one_in(
    playbooks: Playbooks, state: str, error: type[Exception], words: str
) -> None:
    ran = playbooks(LOCKED, FAILED, state=state)
    with pytest.raises(error) as caught:  # even if the unlocking fails
        run("--user", "ops", "--tags", "stack")
    assert words in str(caught.value)
    options = ["--user", "ops", "--tags", "stack"]
    assert [(name, given) for name, given, _ in ran] == [
        ("setup", options),
        ("unlock", [*options, "--tags", "verify"]),
    ]


def test_one_that_was_refused_or_ended_well_has_nothing_to_give_back(playbooks: Playbooks) -> None:
    refused = TaskEvent("failed", "preflight", host="a", action="x.setup_lock", message="another")
    ran = playbooks(refused, state="failed")
    with pytest.raises(FtclusterError, match="another"):
        run()
    assert len(ran) == 1
    ran = playbooks(LOCKED)
    run()
    assert len(ran) == 1


def test_a_reason_that_hosts_share_is_one_line_and_names_no_host_twice(
    playbooks: Playbooks,
) -> None:
    same = [TaskEvent("failed", "stack", "Install", name, "no space") for name in "ab"]
    playbooks(*same, state="failed")
    with pytest.raises(FtclusterError) as caught:
        run()
    assert caught.value.message.splitlines()[1:] == ["  a, b: Install: no space"]
    named = TaskEvent("failed", "stack", host="a", message="a (10.0.0.1) was lost", action=REFUSE)
    playbooks(named, state="failed")
    with pytest.raises(FtclusterError, match=r"\n  a \(10\.0\.0\.1\) was lost"):
        run()


def test_a_failed_rollback_names_its_command(playbooks: Playbooks) -> None:
    playbooks(FAILED, state="failed")
    with pytest.raises(FtclusterError) as caught:
        run_stages(Rollback(), (Path("/i.ini"),), (), make_view(False, Console()))
    assert "run ftcluster setup --rollback again" in caught.value.hint
