from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from ftcluster.cli import setup as verb
from ftcluster.cluster import recall
from ftcluster.errors import FtclusterError
from ftcluster.facts import HostFacts
from ftcluster.inventory import Inventory
from ftcluster.progress.plain import PlainView
from ftcluster.stages import StagesResult
from tests.unit.clusters import host

HOSTS = ("a", "b", "c")
TABLE = ["host  answers as"]
Setup = Callable[..., None]


@pytest.fixture
def setup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Setup:
    """`setup` of the hosts a, b, c whose stages find the hosts given."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))

    def run(
        *found: HostFacts,
        options: tuple[str, ...] = (),
        path: str = "/inventory.ini",
        table: bool = True,
        everyone: tuple[str, ...] = HOSTS,
        passwords: tuple[str, ...] = (),
    ) -> None:
        def run_stages(
            playbook: str, path: Path, given: tuple[str, ...], _view: object
        ) -> StagesResult:
            assert (playbook, given) == ("setup", (*options, *passwords))
            names = tuple(one.name for one in found) if "--limit" in given else everyone
            return StagesResult(
                Inventory(path, names),
                facts={one.name: one for one in found},
                table=TABLE if table else [],
            )

        def read_inventory(path: Path, given: list[str]) -> Inventory:
            assert "--limit" not in given
            return Inventory(path, everyone)

        monkeypatch.setattr(verb, "run_stages", run_stages)
        monkeypatch.setattr(verb, "read_inventory", read_inventory)
        verb.setup(Path(path), options, PlainView(Console(), verbose=False), passwords)

    return run


def names() -> list[str]:
    return [one.name for one in recall().facts.hosts]


def test_a_cluster_that_was_proved_is_remembered_in_the_inventorys_order(setup: Setup) -> None:
    setup(host("c"), host("a"), host("b"), options=("--user", "ops", "--tags", "all"))
    assert names() == ["a", "b", "c"]
    assert recall().inventory == Path("/inventory.ini")
    assert recall().options == ("--user", "ops")


def test_with_limit_the_other_hosts_stay_remembered(setup: Setup) -> None:
    setup(host("a"), host("b"), host("c"))
    setup(host("b", cores=64), options=("--limit", "b"))
    assert names() == ["a", "b", "c"]
    assert [one.cores for one in recall().facts.hosts] == [2, 64, 2]


def test_with_tags_the_facts_stay_remembered(setup: Setup) -> None:
    setup(host("a"), host("b"), host("c"))
    setup(options=("--tags", "mesh"), table=False)
    assert names() == ["a", "b", "c"]


def test_with_limit_a_host_that_was_never_set_up_is_none(setup: Setup) -> None:
    setup(host("b"), options=("--limit", "b"))
    assert names() == ["b"]


def test_a_host_that_left_the_inventory_is_forgotten(setup: Setup) -> None:
    setup(host("a"), host("b"), host("c"))
    setup(host("a"), options=("--limit", "a"), everyone=("a", "c"))
    assert names() == ["a", "c"]


def test_without_a_proof_nothing_is_remembered(setup: Setup) -> None:
    setup(host("a"), host("b"), host("c"), table=False)
    with pytest.raises(FtclusterError, match="no cluster has been set up"):
        recall()
    setup(host("a"), path="/one.ini", everyone=("a",))
    setup(host("b"), path="/two.ini", everyone=("b",), table=False)
    assert recall().inventory == Path("/one.ini")


def test_another_inventory_replaces_the_former(setup: Setup) -> None:
    setup(host("a"), host("b"), host("c"), options=("--user", "ops"))
    setup(host("b", cores=8), path="/other.ini", everyone=("b", "d"))
    assert recall().inventory == Path("/other.ini")
    assert [(one.name, one.cores) for one in recall().facts.hosts] == [("b", 8)]
    assert recall().options == ()


def test_check_mode_remembers_nothing(setup: Setup) -> None:
    setup(host("a"), host("b"), host("c"), options=("--check",))
    with pytest.raises(FtclusterError, match="no cluster has been set up"):
        recall()


def test_passwords_are_not_remembered(setup: Setup, tmp_path: Path) -> None:
    setup(host("a"), passwords=("--become-password-file", str(tmp_path)))
    assert recall().options == ()
    assert str(tmp_path) not in (tmp_path / "state" / "ftcluster" / "cluster.json").read_text()


def test_a_memory_that_cannot_be_read_is_written_anew(setup: Setup, tmp_path: Path) -> None:
    (tmp_path / "state" / "ftcluster").mkdir(parents=True)
    (tmp_path / "state" / "ftcluster" / "cluster.json").write_text("{")
    setup(host("a"), host("b"), host("c"))
    assert names() == ["a", "b", "c"]
