import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from ftcluster.ansible.answers import FACTS, NOTICES, PROBLEMS, REPORT
from ftcluster.ansible.inventory import Inventory
from ftcluster.ansible.playbook import PlaybookOutcome, TaskEvent
from ftcluster.ansible.playbooks import ClusterVariables
from ftcluster.cli.main import main
from ftcluster.cluster.saved import Cluster, remember
from ftcluster.errors import FtclusterError, Interrupted
from ftcluster.operations.setup import check
from ftcluster.progress.view import make_view
from ftcluster.provision import check as collecting
from ftcluster.provision import stages
from ftcluster.provision.check import Found, collect
from tests.unit.answers import answer_event
from tests.unit.check_documents import found
from tests.unit.clusters import VM, cluster

# --- responses of the hosts


@pytest.fixture
def playbook(monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """Replace a playbook by these events and this end; record its arguments."""

    def prepare(*events: TaskEvent, state: Any = "done") -> dict[str, Any]:
        ran: dict[str, Any] = {}

        def run_playbook(
            name: str, path: Path, _: object, on_event: Callable[[TaskEvent], None], **options: Any
        ) -> PlaybookOutcome:
            folder = Path(options["settings"]["ANSIBLE_SSH_CONTROL_PATH_DIR"])
            ran.update(name=name, path=path, **options, folder=folder, was_there=folder.is_dir())
            for event in events:
                on_event(event)
            return PlaybookOutcome(state, "said")

        monkeypatch.setattr(stages, "run_playbook", run_playbook)
        return ran

    monkeypatch.setattr(
        collecting,
        "address",
        lambda paths, *_: (Inventory(paths, ("a", "b"), ("a", "b")), ClusterVariables()),
    )
    return prepare


def ask(*options: str) -> Found:
    return collect((Path("/i.ini"),), options, make_view(False, Console(quiet=True)))


def test_everything_that_hosts_say_is_kept(playbook: Callable[..., dict[str, Any]]) -> None:
    ran = playbook(
        answer_event(FACTS, {"cores": 2}),
        answer_event(PROBLEMS, [{"what": "p", "hint": "h"}]),
        answer_event(NOTICES, [{"what": "n"}], "b"),
        answer_event(REPORT, {"hosts": []}),
    )
    result = ask("--limit", "a")
    assert ran["name"] == "ftcluster.cluster.check"
    assert ran["options"] == ("--limit", "a")
    assert result.facts == {"a": {"cores": 2}}
    assert (result.problems, result.notices) == (
        {"a": [{"what": "p", "hint": "h"}]},
        {"b": [{"what": "n"}]},
    )
    assert result.report == {"hosts": []}
    assert result.failures == {}
    # new connections, because a check would wait for an open connection to a host that is off
    assert ran["was_there"]
    assert not ran["folder"].exists()


def test_hosts_that_are_lost_do_not_fail_the_check(playbook: Callable[..., dict[str, Any]]) -> None:
    off = TaskEvent("unreachable", "preflight", "Look", "b", "No route to host")
    broken = TaskEvent("failed", "preflight", "Read", "a", "no python")
    playbook(off, broken, state="failed")
    assert ask().failures == {"b": off, "a": broken}


@pytest.mark.parametrize(
    ("state", "error", "words"),
    [
        ("stopped", Interrupted, "the cluster is unchanged"),
        ("timeout", FtclusterError, "took longer than 300 s"),
        ("failed", FtclusterError, "check failed: said"),
    ],
)
def test_a_check_that_could_not_be_made(
    playbook: Callable[..., dict[str, Any]], state: str, error: type[Exception], words: str
) -> None:
    playbook(state=state)
    with pytest.raises(error, match=words):
        ask()


# --- the command

Asked = list[tuple[tuple[Path, ...], Sequence[str]]]


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Asked:
    """Record the requests to the hosts, which have no faults."""
    monkeypatch.chdir(tmp_path)
    calls: Asked = []

    def collect(paths: tuple[Path, ...], options: Sequence[str], *_: object) -> Found:
        calls.append((paths, options))
        return found(2)

    monkeypatch.setattr(check, "collect", collect)
    return calls


def test_without_an_inventory_the_last_cluster_is_checked_as_it_was_set_up(asked: Asked) -> None:
    remember(Cluster((Path("/inventory.ini"),), cluster(VM), ("--user", "ops")))
    assert main(["check", "--limit", "node1"]) == 0
    assert main(["check", "/inventory.ini", "--user", "me"]) == 0
    assert main(["check", "/other.ini", "-e", "x=1"]) == 0
    assert asked == [
        ((Path("/inventory.ini"),), ("--user", "ops", "--limit", "node1")),
        ((Path("/inventory.ini"),), ("--user", "ops", "--user", "me")),
        ((Path("/other.ini"),), ("--extra-vars", "x=1")),
    ]


def test_results_and_exit_codes(
    asked: Asked, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check"]) == 1  # no cluster has been set up
    assert main(["check", "a.ini", "b.ini"]) == 2
    assert main(["check", "--tags", "x"]) == 2
    assert asked == []
    capsys.readouterr()
    assert main(["check", "i.ini"]) == 0
    assert capsys.readouterr().out.endswith("fit: 2 hosts, 9 s\n")
    assert main(["check", "i.ini", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["state"] == "fit"
    monkeypatch.setattr(
        check, "collect", lambda *_: found(2, problems={"node0": [{"what": "p", "hint": "h"}]})
    )
    assert main(["check", "i.ini"]) == 1
    capsys.readouterr()
    assert main(["check", "i.ini", "--strict", "--quiet"]) == 1
    said = capsys.readouterr()
    assert (said.out, said.err) == ("unfit: 2 hosts, 1 problem, 9 s; node0: p\n", "")
