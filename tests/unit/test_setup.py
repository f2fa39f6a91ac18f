from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from ftcluster.cli import setup as verb
from ftcluster.cli.main import build_parser
from ftcluster.cluster import Cluster, recall, remember
from ftcluster.errors import FtclusterError
from ftcluster.facts import HostFacts
from ftcluster.inventory import Inventory
from ftcluster.progress.plain import PlainView
from ftcluster.stages import StagesResult
from tests.unit.clusters import cluster, host

HOSTS = ("a", "b", "c")
TABLE = ["host  answers as"]
Setup = Callable[..., None]
Given = Callable[..., tuple[str, Path, tuple[str, ...]]]


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


@pytest.fixture
def given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Given:
    """What the stages are given by `ftcluster setup` with the words."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))

    def run(*words: str) -> tuple[str, Path, tuple[str, ...]]:
        calls = []

        def run_stages(
            playbook: str, path: Path, options: tuple[str, ...], _view: object
        ) -> StagesResult:
            calls.append((playbook, path, options))
            return StagesResult(Inventory(path, ("a",)), facts={"a": host("a")}, table=TABLE)

        monkeypatch.setattr(verb, "run_stages", run_stages)
        assert verb.run(build_parser().parse_args(["setup", *words])) == 0
        (call,) = calls
        return call

    return run


def test_the_same_cluster_again_is_reached_the_same_way(given: Given) -> None:
    remember(Cluster(Path("/inventory.ini"), cluster(host("a")), ("--user", "ops")))
    for playbook, words in (("setup", ()), ("rollback", ("--rollback",))):
        assert given(*words) == (playbook, Path("/inventory.ini"), ("--user", "ops"))
    assert recall().options == ("--user", "ops")


def test_what_is_given_goes_before_what_is_remembered(given: Given) -> None:
    remember(Cluster(Path("/inventory.ini"), cluster(host("a")), ("--user", "ops")))
    _, _, options = given("--user", "me", "--check")
    assert options == ("--user", "ops", "--user", "me", "--check")  # Ansible takes the last


def test_with_an_inventory_nothing_is_taken_from_the_last_time(
    given: Given, tmp_path: Path
) -> None:
    path = tmp_path / "inventory.ini"
    remember(Cluster(path, cluster(host("a")), ("--user", "ops")))
    assert given(str(path), "--rollback") == ("rollback", path, ())
    assert given(str(path)) == ("setup", path, ())
    assert recall().options == ()


def test_without_anything_remembered_it_is_this_machine(given: Given) -> None:
    playbook, path, options = given()
    assert (playbook, path.name, options) == ("setup", "localhost.ini", ())
