"""The command `hosts`: its changes of the saved cluster, and the stages it runs on each host."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ftcluster.ansible.inventory import Inventory
from ftcluster.ansible.playbooks import Playbook
from ftcluster.cli.main import main
from ftcluster.cluster.record import Drained, with_drained
from ftcluster.cluster.saved import Cluster, recall, remember
from ftcluster.errors import FtclusterError
from ftcluster.operations.setup import hosts, setup
from ftcluster.operations.train.prepare import RecipeRequest
from ftcluster.provision.stages import StagesResult
from ftcluster_common.protocol.run_state import RunState
from tests.unit.clusters import cluster, host
from tests.unit.shell import Said, Shell

Paths = tuple[Path, ...]
Played = list[tuple[str, tuple[str, ...]]]
RUN = RunState("mrpc-1", "running", "mrpc", ("xeon1", "xeon2"), 2, 3, 9, 0.0, 1.0, "")


INVENTORY = Path("/inventory.ini")
EVERYONE = ("xeon1", "xeon2", "xeon3", "xeon4")


@pytest.fixture(autouse=True)
def of_inventory(monkeypatch: pytest.MonkeyPatch, head: Path) -> list[str]:
    """Write an inventory of xeon1 to xeon4 with the first three as the cluster."""
    own: list[str] = []

    def read_inventory(paths: Paths, options: tuple[str, ...] = (), saved: str = "") -> Inventory:
        given = [
            value.partition("=")[2]
            for name, value in zip(options[::2], options[1::2], strict=True)
            if name == "--extra-vars"
        ]
        pattern = (given or own or [saved])[-1]
        names = tuple(pattern.split(",")) if pattern not in ("", "all") else EVERYONE
        return Inventory(paths, names, names, pattern)

    monkeypatch.setattr(hosts, "read_inventory", read_inventory)
    head.write_text("")
    three = cluster(*(host(name, cores=16) for name in EVERYONE[:3]))
    remember(Cluster((INVENTORY,), three, ("--user", "ops"), "xeon1,xeon2,xeon3"))
    return own


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch, head: Path) -> Played:
    """Record the playbooks and their options; every host responds."""
    found: Played = []

    def run_stages(
        playbook: Playbook, paths: Paths, options: tuple[str, ...], *_: Any, **__: Any
    ) -> StagesResult:
        found.append((playbook.name, tuple(options)))
        pairs = dict(zip(options[::2], options[1::2], strict=True))
        pattern = pairs.get("--extra-vars", "").partition("=")[2] or recall().pattern
        names = tuple(pattern.split(",")) if pattern else EVERYONE
        here = tuple(pairs["--limit"].split(",")) if "--limit" in pairs else names
        facts = {name: host(name, cores=16) for name in here}
        inventory = Inventory(paths, here, names, pattern)
        records: dict[str, object] = {here[0]: head.read_text().strip()}
        return StagesResult(inventory, facts=facts, table=["ok"], stack="native", records=records)

    monkeypatch.setattr(setup, "run_stages", run_stages)
    monkeypatch.setattr(hosts, "run_stages", run_stages)
    monkeypatch.setattr(hosts, "all_runs", lambda *_, **__: ([RUN], 0))
    return found


def run(shell: Shell, *words: str, code: int = 0) -> Any:
    return shell(["hosts", *words, "--json"], code).document


def names() -> list[str]:
    return [one.name for one in recall().facts.hosts]


def test_a_drained_host_is_left_out_of_new_plans_until_it_returns(shell: Shell) -> None:
    run(shell, "drain", "xeon2", "--why", "memory errors")
    decided = RecipeRequest(("quickstart",)).prepared(recall()).plan
    assert [one.name for one in decided.hosts] == ["xeon1", "xeon3"]
    [why] = [one.why for one in decided.decisions if (one.what, one.value) == ("drained", "xeon2")]
    assert "memory errors" in why
    with pytest.raises(FtclusterError, match="--nodes 3"):
        RecipeRequest(("quickstart",), nodes=3).prepared(recall())
    assert [row["state"] for row in run(shell)["hosts"]] == [
        "head",
        "drained",
        "set up",
        "not set up",
    ]
    run(shell, "return", "xeon2")
    assert len(RecipeRequest(("quickstart",)).prepared(recall()).plan.hosts) == 3


def test_the_others_let_added_hosts_in_before_these_are_verified(
    played: Played, shell: Shell
) -> None:
    run(shell, "drain", "xeon3")
    assert run(shell, "add", "xeon4")["hosts"] == ["xeon1", "xeon2", "xeon3", "xeon4"]
    user = ("--user", "ops")
    pattern = ("--extra-vars", "ftcluster_hosts=xeon1,xeon2,xeon3,xeon4")
    assert played == [
        ("setup", (*user, *pattern, "--tags", "system")),
        ("setup", (*user, *pattern, "--limit", "xeon4")),
        ("setup", (*user, *pattern, "--tags", "mesh,verify")),
    ]
    assert names() == ["xeon1", "xeon2", "xeon3", "xeon4"]
    assert list(recall().drained) == ["xeon3"]


def test_where_the_pattern_names_the_new_host_it_stays(played: Played, shell: Shell) -> None:
    remember(replace(recall(), pattern=""))
    run(shell, "add", "xeon4")
    assert [options[2] for _, options in played] == ["--tags", "--limit", "--tags"]


def test_removed_hosts_are_forgotten_by_the_others(played: Played, shell: Shell) -> None:
    found = run(shell, "remove", "xeon3")
    assert "--limit xeon3" in found["stays"]
    pattern = ("--extra-vars", "ftcluster_hosts=xeon1,xeon2")
    assert played == [
        ("setup", ("--user", "ops", *pattern, "--tags", "system")),
        ("setup", ("--user", "ops", *pattern, "--tags", "mesh,verify")),
    ]
    assert (names(), recall().pattern) == (["xeon1", "xeon2"], "xeon1,xeon2")


def test_teardown_goes_before_a_host_is_forgotten(played: Played, shell: Shell) -> None:
    assert run(shell, "remove", "xeon3", "--teardown")["stays"] == ""
    assert played[0] == ("teardown", ("--user", "ops", "--limit", "xeon3"))


def test_what_is_refused_changes_nothing(
    of_inventory: list[str], played: Played, shell: Shell, said: Said
) -> None:
    before = recall()
    words = ("add xeon9", "add xeon2", "remove xeon1", "remove xeon2", "remove xeon4,xeon5",
             "drain xeon1", "return xeon2")  # fmt: skip
    for one in words:
        found = run(shell, *one.split(), code=1)
        said(f"{found['error']}\n{found['hint']}")
    of_inventory.append("xeon1,xeon2,xeon3")
    found = run(shell, "add", "xeon4", code=1)
    said(f"{found['error']}\n{found['hint']}")
    # `return` asks for the record, which says if xeon2 is drained
    asked = replace(recall(), as_of="", record="")
    assert (asked, played) == (before, [])
    assert main(["hosts", "drain"]) == 2
    assert main(["hosts", "list"]) == 2


def test_the_head_is_never_left_out_by_a_later_setup() -> None:
    drained = with_drained({"xeon1": Drained("slow", "2026-01-31")})
    found = StagesResult(
        Inventory((INVENTORY,), ("xeon1", "xeon2"), ("xeon1", "xeon2")),
        facts={name: host(name) for name in ("xeon1", "xeon2")},
        table=["ok"],
        stack="native",
        records={"xeon1": json.dumps({"format": 1, **drained})},
    )
    setup._save(found, ())
    assert recall().drained == {}
