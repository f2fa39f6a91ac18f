from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from ftcluster.ansible.answers import LACKS, ORPHANS, SET_FACT
from ftcluster.ansible.inventory import Inventory
from ftcluster.ansible.playbook import TaskEvent
from ftcluster.ansible.playbooks import Playbook
from ftcluster.cli.main import main
from ftcluster.cluster.facts import HostFacts
from ftcluster.cluster.saved import Cluster, recall, remember
from ftcluster.errors import FtclusterError, UsageError
from ftcluster.operations.setup import setup as verb
from ftcluster.progress.view import make_view
from ftcluster.provision.stages import StagesResult
from tests.unit.clusters import cluster, host
from tests.unit.shell import Shell

HOSTS = ("a", "b", "c")
TABLE = ["host  answers as"]
Setup = Callable[..., None]
Paths = tuple[Path, ...]
# the playbook, the inventories, the options and the variables
Given = tuple[str, Paths, tuple[str, ...], dict[str, Any]]


@pytest.fixture
def setup(monkeypatch: pytest.MonkeyPatch) -> Setup:
    """Record `setup` of the hosts a, b, c whose stages return the given hosts."""

    def run(
        *found: HostFacts,
        options: tuple[str, ...] = (),
        path: str = "/inventory.ini",
        pattern: str = "",
        table: bool = True,
        everyone: tuple[str, ...] = HOSTS,
        passwords: tuple[str, ...] = (),
    ) -> None:
        def run_stages(
            playbook: Playbook, paths: Paths, given: tuple[str, ...], *_: object, **__: object
        ) -> StagesResult:
            assert (playbook.name, given) == ("setup", (*options, *passwords))
            names = tuple(one.name for one in found) if "--limit" in given else everyone
            return StagesResult(
                Inventory(paths, names, everyone, pattern),
                facts={one.name: one for one in found},
                table=TABLE if table else [],
            )

        monkeypatch.setattr(verb, "run_stages", run_stages)
        verb.set_up((Path(path),), options, make_view(False, Console()), passwords)

    return run


def test_a_host_without_what_was_asked_for_is_not_ready() -> None:
    result = StagesResult(Inventory((), HOSTS, HOSTS), table=TABLE)
    for name in HOSTS:
        result.progress.add(TaskEvent("ok", "verify", "Keep", name))
    for name, lacks in (("a", []), ("b", ["tcmalloc"]), ("c", ["firewall", "tcmalloc"])):
        facts = {"ansible_facts": {"cluster_lacks": lacks}}
        event = TaskEvent("ok", "verify", LACKS.task, name, action=SET_FACT, result=facts)
        result.add(event)
    done = verb.SetupResult(result)
    assert done.document()["lacks"] == {"a": [], "b": ["tcmalloc"], "c": ["firewall", "tcmalloc"]}
    open_ports, slower, summary = done.lines()[1:]
    assert open_ports.startswith("c: not ready, because without root there is no firewall")
    assert slower.startswith("b, c: tcmalloc is missing")
    assert summary.startswith("3 hosts set up, 2 of them ready, 0 changes")
    result.lacks = {"a": [], "b": ["tcmalloc"]}
    assert done.lines()[-1].startswith("3 hosts ready, 0 changes")


def test_teardown_names_files_that_the_next_account_would_own() -> None:
    result = StagesResult(Inventory((), ("a",), ("a",)))
    kept = "/opt/ftcluster/runs/old (user id 998)"
    facts = {"ansible_facts": {"cluster_orphans": [kept]}}
    result.add(TaskEvent("ok", "teardown", ORPHANS.task, "a", action=SET_FACT, result=facts))
    result.progress.add(TaskEvent("ok", "teardown", ORPHANS.task, "a"))
    done = verb.TeardownResult(result)
    assert done.document()["orphans"] == {"a": [kept]}
    path, summary = done.lines()
    assert path.startswith(f"a: {kept} was not removed, and the next account with its user id")
    assert summary.startswith("removed from 1 host")


def names() -> list[str]:
    return [one.name for one in recall().facts.hosts]


def test_a_verified_cluster_is_saved_in_the_inventorys_order(setup: Setup) -> None:
    setup(host("b"), options=("--limit", "b"))
    assert names() == ["b"]
    # in the inventory's order
    setup(host("c"), host("a"), host("b"), options=("--user", "ops", "--tags", "all"))
    assert names() == ["a", "b", "c"]
    assert recall().inventories == (Path("/inventory.ini"),)
    assert recall().options == ("--user", "ops")
    # with --limit the other hosts stay saved
    setup(host("a"), host("b"), host("c"))
    setup(host("b", cores=64), options=("--limit", "b"))
    assert names() == ["a", "b", "c"]
    assert [one.cores for one in recall().facts.hosts] == [2, 64, 2]
    # with tags all facts stay saved
    setup(options=("--tags", "mesh"), table=False)
    assert names() == ["a", "b", "c"]
    # a host that left the inventory is forgotten
    setup(host("a"), options=("--limit", "a"), everyone=("a", "c"))
    assert names() == ["a", "c"]
    # another inventory replaces the former
    setup(host("a"), host("b"), host("c"), options=("--user", "ops"))
    setup(host("b", cores=8), path="/other.ini", everyone=("b", "d"))
    assert recall().inventories == (Path("/other.ini"),)
    assert [(one.name, one.cores) for one in recall().facts.hosts] == [("b", 8)]
    assert recall().options == ()
    # the pattern of hosts is saved
    setup(host("a"), host("b"), pattern="a,b", everyone=("a", "b"))
    assert recall().pattern == "a,b"
    assert names() == ["a", "b"]


def test_check_mode_saves_nothing(setup: Setup) -> None:
    setup(host("a"), host("b"), host("c"), options=("--check",))
    with pytest.raises(FtclusterError, match="no cluster has been set up"):
        recall()
    # a setup without verify does not change this either
    setup(host("a"), host("b"), host("c"), table=False)
    with pytest.raises(FtclusterError, match="no cluster has been set up"):
        recall()
    setup(host("a"), path="/one.ini", everyone=("a",))
    setup(host("b"), path="/two.ini", everyone=("b",), table=False)
    assert recall().inventories == (Path("/one.ini"),)


def test_passwords_are_not_saved(setup: Setup, tmp_path: Path) -> None:
    setup(host("a"), passwords=("--become-password-file", str(tmp_path)))
    assert recall().options == ()
    assert str(tmp_path) not in (tmp_path / "state" / "ftcluster" / "cluster.json").read_text()


WRONG = (
    "{", "[]", "null", "\xff", '{"facts": {"hosts": []}}', "[" * 100_000,
    '{"inventories": "x", "hosts": "", "options": [], "facts": {"hosts": [{"name": "a"}]}}',
)  # fmt: skip


@pytest.mark.parametrize("text", WRONG, ids=range(len(WRONG)))
def test_a_damaged_saved_cluster_never_means_this_machine(
    text: str, setup: Setup, tmp_path: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_stages(*_: object) -> StagesResult:
        raise AssertionError("something is set up")

    monkeypatch.setattr(verb, "run_stages", run_stages)
    file = tmp_path / "state" / "ftcluster" / "cluster.json"
    file.parent.mkdir(parents=True)
    file.write_bytes(text.encode("latin-1"))
    for command in ("setup", "check", "plan", "ps", "hosts") if text == "{" else ("setup",):
        said = shell([command], 1).err
        assert said.startswith(f"error: {file} cannot be read: ")
        assert "ftcluster setup INVENTORY" in said
        assert len(said) < 1000
    assert [one.name for one in file.parent.iterdir()] == [file.name]
    setup(host("a"), host("b"), host("c"))
    assert names() == ["a", "b", "c"]
    assert file.with_name("cluster.json.damaged").read_bytes() == text.encode("latin-1")


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Given]:
    """Return the variables that `ftcluster setup` passes to its stages for these arguments."""

    def run(*words: str) -> Given:
        calls: list[Given] = []

        def run_stages(
            playbook: Playbook, paths: Paths, options: tuple[str, ...], *_: object, **__: object
        ) -> StagesResult:
            calls.append((playbook.name, paths, options, playbook.variables()))
            facts = {"a": host("a")}
            inventory = Inventory(paths, ("a",), ("a",))
            return StagesResult(inventory, facts=facts, table=TABLE, stack="native")

        monkeypatch.setattr(verb, "run_stages", run_stages)
        assert main(["setup", *words]) == 0
        (call,) = calls
        return call

    return run


def test_the_same_cluster_uses_the_saved_connection_options(given: Callable[..., Given]) -> None:
    remember(Cluster((Path("/inventory.ini"),), cluster(host("a")), ("--user", "ops")))
    assert given() == ("setup", (Path("/inventory.ini"),), ("--user", "ops"), {})
    assert given("--rollback") == ("rollback", (Path("/inventory.ini"),), ("--user", "ops"), {})
    assert recall().options == ("--user", "ops")
    # options override saved ones
    remember(Cluster((Path("/inventory.ini"),), cluster(host("a")), ("--user", "ops")))
    words = ("--user", "me", "--check", "-e", "torch_stack_name=intel-2.8")
    _, _, options, variables = given(*words)
    assert options == (
        "--user", "ops", "--extra-vars", "torch_stack_name=intel-2.8", "--user", "me", "--check",
    )  # fmt: skip # Ansible takes the last
    assert variables == {}


def test_where_the_cluster_lives_is_saved_with_it(
    given: Callable[..., Given], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Otherwise `check` and `setup` would use another cluster of the same hosts."""
    path = tmp_path / "inventory.ini"
    given(str(path), "-e", "ftcluster_prefix='/my disk/ft' torch_stack_name=native")
    given("-e", "ftcluster_root=false")
    saved = ("ftcluster_prefix='/my disk/ft'", "ftcluster_root=false")
    assert recall().options == ("--extra-vars", saved[0], "--extra-vars", saved[1])
    assert given()[2] == recall().options
    # the last value of each option counts
    given("-e", '{"ftcluster_prefix": "/elsewhere"}')
    assert recall().options[1] == "ftcluster_prefix=/elsewhere"
    # a setup that names the inventory uses only that inventory's options
    capsys.readouterr()
    assert given(str(path), "-e", "ftcluster_root=false")[2] == (
        "--extra-vars", "ftcluster_root=false",
    )  # fmt: skip
    note = capsys.readouterr().err
    assert "the last setup of this inventory used -e ftcluster_prefix=/elsewhere" in note
    assert "-e ftcluster_root" not in note
    # the message has the command for that cluster
    assert "--extra-vars ftcluster_prefix=/elsewhere" in note
    assert recall().options == ("--extra-vars", "ftcluster_root=false")


def test_with_an_inventory_saved_connection_options_are_not_used(
    given: Callable[..., Given], tmp_path: Path
) -> None:
    path = tmp_path / "inventory.ini"
    remember(Cluster((path,), cluster(host("a")), ("--user", "ops")))
    assert given(str(path), "--rollback") == ("rollback", (path,), (), {})
    assert given(str(path)) == ("setup", (path,), (), {})
    assert recall().options == ()


def test_the_same_inventories_are_the_same_cluster_by_any_path(
    given: Callable[..., Given], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    shell: Shell,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    known = Cluster((tmp_path / "a", tmp_path / "b"), cluster(host("x")))

    remember(replace(known, facts=cluster(host("a", stack="intel-2.8"))))
    given("--inventory", "a", "-i", str(tmp_path / "b"), "--rollback")
    assert recall().facts.head.stack == "native"
    # in another order, other variables have precedence
    remember(replace(known, facts=cluster(host("a", stack="intel-2.8"))))
    given("-i", "b", "-i", "a", "--rollback")
    assert recall().facts.head.stack == "intel-2.8"
    assert "-i a -i b" in shell("setup a -i b", 2).err


def test_without_a_saved_cluster_setup_refuses_and_localhost_is_typed(
    given: Callable[..., Given], shell: Shell, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    for words in ("setup", "setup --check", "setup --rollback --json"):
        refused = shell(words, 2)
        assert "ftcluster setup localhost" in refused.err + refused.out, words
    playbook, (path,), options, variables = given("localhost")
    assert (playbook, path.name, options, variables) == ("setup", "localhost.ini", (), {})


def test_setup_without_an_inventory_names_its_cluster_in_the_first_line(
    given: Callable[..., Given], capsys: pytest.CaptureFixture[str]
) -> None:
    hosts = cluster(host("xeon1"), host("xeon2"))
    remember(Cluster((Path("/srv/inventory.ini"),), hosts, ("--user", "ops")))
    given()
    first = capsys.readouterr().err.splitlines()[0]
    assert "/srv/inventory.ini (xeon1-xeon2)" in first
    given("localhost")  # another cluster: the message says what later commands use
    replaced = capsys.readouterr().err
    assert "instead of /srv/inventory.ini" in replaced
    assert "ftcluster setup /srv/inventory.ini" in replaced
    given()
    assert "inventory: localhost (a)" in capsys.readouterr().err


# --- the stack


def test_options_of_the_stack(
    given: Callable[..., Given], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def variables(*words: str) -> dict[str, Any]:
        return given("localhost", *words)[3]

    assert variables() == {}  # inventory and playbook choose the stack
    assert variables("--downgrade") == {"node_agent_downgrade": True}
    assert variables("--stack", "auto") == {"torch_stack_name": "auto"}
    (tmp_path / "my.ftbundle").touch()
    monkeypatch.chdir(tmp_path)
    words = ("--stack", "intel-2.5", "--bundle", "my.ftbundle", "--allow-yanked", "--prune")
    assert variables(*words, "--allow-unverified") == {
        "torch_stack_name": "intel-2.5",
        "torch_stack_bundle": str(tmp_path / "my.ftbundle"),
        "torch_stack_allow_yanked": True,
        "torch_stack_allow_unverified": True,
        "ftcluster_prune": True,
    }


def test_a_missing_bundle_is_wrong_usage(tmp_path: Path) -> None:
    for path in (tmp_path / "none.ftbundle", tmp_path):
        with pytest.raises(UsageError, match=str(tmp_path)):
            verb.SetupRequest(bundle=str(path)).playbook()


def test_nothing_of_the_saved_cluster_overrides_the_inventory(given: Callable[..., Given]) -> None:
    """Extra variables would override it; the head knows the cluster's stack."""
    known = Cluster(
        (Path("/inventory.ini"),), cluster(host("a", stack="intel-2.8")), ("--user", "x")
    )
    for words in ((), ("--prune",), ("--tags", "stack")):
        remember(known)
        passed = given(*words)[3]
        assert passed.keys() <= {"ftcluster_prune"}


def stack_after(monkeypatch: pytest.MonkeyPatch, stack: str, *words: str) -> dict[str, str]:
    """Return the stack saved for each host after the stages have reported this stack."""
    path = Path("/inventory.ini")
    both = ("a", "b")
    names = ("b",) if "--limit" in words else ("a", "b")

    def run_stages(*_: object, **__: object) -> StagesResult:
        facts = {name: host(name) for name in names}
        return StagesResult(Inventory((path,), names, both), facts=facts, table=TABLE, stack=stack)

    monkeypatch.setattr(verb, "run_stages", run_stages)
    assert main(["setup", str(path), *words]) == 0
    return {one.name: one.stack for one in recall().facts.hosts}


def test_the_stack_in_use_is_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    both = {"a": "intel-2.8", "b": "intel-2.8"}
    assert stack_after(monkeypatch, "intel-2.8") == both
    assert stack_after(monkeypatch, "native", "--check") == both
    assert stack_after(monkeypatch, "native", "--rollback", "--check") == both
    limited = {"a": "intel-2.8", "b": "native"}
    assert stack_after(monkeypatch, "native", "--rollback", "--limit", "b") == limited
    assert stack_after(monkeypatch, "native", "--rollback") == {"a": "native", "b": "native"}


def test_setup_refuses_to_choose_between_ansibles_inventory_and_the_last_cluster(
    given: Callable[..., Given], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shell: Shell
) -> None:
    """Paths in ansible.cfg are interpreted as ansible-config interprets them."""
    monkeypatch.delenv("ANSIBLE_INVENTORY", raising=False)
    monkeypatch.delenv("ANSIBLE_CONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    config = folder / "ansible.cfg"
    ours, other = folder / "inventory.ini", folder / "company" / "hosts.yml"

    def refused() -> str:
        return shell("setup", 2).err

    config.write_text("[defaults]\ninventory = company/hosts.yml\n")
    nothing_saved = refused()
    assert f"{config} names {other}" in nothing_saved
    assert f"{other}; to set up this machine: ftcluster setup localhost" in nothing_saved
    remember(Cluster((ours,), cluster(host("a")), ("--user", "ops")))
    both = refused()
    assert f"ftcluster setup {other};" in both
    assert f"ftcluster setup {ours} --user ops" in both
    # the same order, with any spelling of the paths
    config.write_text("[defaults]\ninventory = ./company/../inventory.ini\n")
    assert given()[1] == (ours,)
    link = tmp_path / "link.ini"
    ours.touch()
    link.symlink_to(ours)
    monkeypatch.setenv("ANSIBLE_INVENTORY", str(link))
    assert given()[1] == (ours,)
    monkeypatch.setenv("ANSIBLE_INVENTORY", f"{ours}, ~/b.ini")
    assert f"ftcluster setup -i {ours} -i {tmp_path}/home/b.ini" in refused()
    monkeypatch.delenv("ANSIBLE_INVENTORY")
    config.write_text("[defaults]\nforks = 5\n")
    assert given()[1] == (ours,)
    # the bundled inventory is shown as the user types it
    config.write_text("[defaults]\ninventory = inventory.ini\n")
    given("localhost")
    assert "to set up localhost: ftcluster setup localhost" in refused()


@pytest.mark.parametrize(
    "words",
    ["setup", "setup localhost --limit", "setup localhost --stack", "setup -i", "teardown",
     "teardown localhost -l", "stop", "clean --yes", "fetch", "train --resume", "check", "ps -i"],
)  # fmt: skip
def test_an_unset_variable_of_the_shell_selects_nothing(
    words: str, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty --limit would select all hosts, and an empty run the newest run."""

    def run(*_: object, **__: object) -> None:
        raise AssertionError("something is done")

    monkeypatch.setattr(verb, "run_stages", run)
    assert "the value is missing" in shell([*words.split(), ""], 2).err
