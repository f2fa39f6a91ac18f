"""The shared record of a cluster: its format, and changes by control nodes."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.ftcluster.cluster.plugins.module_utils.record import (
    MOST,
    merged,
    parse_record,
    rendered,
)
from ansible_collections.ftcluster.cluster.plugins.modules import cluster_record

from ftcluster.ansible.answers import CLUSTER_CHANGED
from ftcluster.ansible.inventory import Inventory
from ftcluster.ansible.playbook import PlaybookOutcome, TaskEvent
from ftcluster.ansible.playbooks import Record
from ftcluster.cli.main import main
from ftcluster.cluster.facts import BENCH, SETUP
from ftcluster.cluster.record import Drained, MeasuredOn, record_of, with_bench, with_drained
from ftcluster.cluster.saved import Cluster, recall, remember
from ftcluster.errors import FtclusterError
from ftcluster.launch import run_hosts
from ftcluster.launch.record import recorded_runs
from ftcluster.operations.train.prepare import RecipeRequest
from ftcluster.progress.view import make_view
from ftcluster.provision import shared
from ftcluster.provision.shared import change_record
from ftcluster.provision.stages import StagesResult
from tests.unit.answers import answer_event
from tests.unit.clusters import cluster, host
from tests.unit.shell import Shell

THREE = ("xeon1", "xeon2", "xeon3")
GOOD: dict[str, Any] = {
    "format": 1,
    "drained": {"xeon3": {"why": "memory errors", "since": "2026-01-31"}},
    "all_reduce": {
        "setup": {"ms": {"gloo": 9.5, "impi": 4}, "bytes": 4194304, "hosts": list(THREE),
                  "stack": "native", "sizes": {"26214400": {"gloo": 21, "impi": 19.5}}},
    },
    "tunings": {
        "0a": {"name": "mrpc", "recipe": {}, "hosts": [{"name": "xeon1"}], "date": "2026-01-31",
               "settings": {"ranks_per_host": 2}, "speed_up": 1.2, "spread": 0.01, "trials": 9},
    },
}  # fmt: skip


def known(text: str = "", stack: str = "native") -> Cluster:
    """Return the cluster as a control node knows it after this response of the head."""
    hosts = cluster(*(host(name, stack=stack) for name in THREE))
    return Cluster((Path("/inventory.ini"),), hosts).with_record(text)


def planted(way: str, value: object) -> str:
    """Return a valid record with one value replaced."""
    document = json.loads(json.dumps(GOOD))
    *folders, name = way.split("/")
    place = document
    for one in folders:
        place = place[one]
    place[name] = value
    return json.dumps(document)


def test_what_is_known_of_a_cluster() -> None:
    found = known(json.dumps(GOOD))
    assert found.drained == {"xeon3": Drained("memory errors", "2026-01-31")}
    assert found.facts.all_reduce
    assert (found.facts.all_reduce.ms["impi"], found.facts.all_reduce.by) == (4.0, SETUP)
    assert found.facts.all_reduce.nearest(20 << 20).ms["impi"] == 19.5
    assert found.tunings[0].settings == {"ranks_per_host": 2}
    assert known(json.dumps(GOOD), stack="intel-2.8").facts.all_reduce is None
    remember(found)
    assert recall() == found


def test_bench_counts_more_on_the_same_hosts_with_the_same_stack() -> None:
    bench = MeasuredOn({"gloo": 1.0}, 1 << 20, THREE, "native")
    for measured, by in (
        (bench, BENCH),
        (replace(bench, hosts=THREE[:2]), SETUP),
        (replace(bench, stack="x"), SETUP),
    ):
        found = known(rendered(merged(parse_record(json.dumps(GOOD)), with_bench(measured))))
        assert found.facts.all_reduce
        assert found.facts.all_reduce.by == by


WRONG = (
    7, None, ["{}"], "x", "{", "[]", "[" * 100_000, "{}" + " " * MOST,
    '{"format": 2}', planted("format", None), planted("drained", []),
    planted("drained/xeon2", "why"), planted("drained/xeon3/why", 3),
    planted("drained/xeon3/since", "2026-01-31\n"), planted("drained/xeon3", {}),
    planted("all_reduce/setup/ms", [1]), planted("all_reduce/setup/ms/gloo", "9"),
    planted("all_reduce/setup/ms/gloo", True), planted("all_reduce/setup/ms/gloo", float("inf")),
    planted("all_reduce/setup/ms/gloo", 10**400), planted("all_reduce/setup/bytes", float("nan")),
    planted("all_reduce/setup/hosts", "xeon1"), planted("all_reduce/setup/hosts", [1]),
    planted("all_reduce/setup/stack", None), planted("tunings/0a/settings", {"name": "x"}),
    planted("tunings/0a/settings", {"ranks_per_host": "2"}), planted("tunings/0a/hosts", {}),
    planted("tunings/0a/settings", {"ranks_per_host": True}), planted("tunings/0a/hosts", [{}]),
    planted("all_reduce/setup/bytes", 0), planted("all_reduce/setup/sizes", [1]),
    planted("all_reduce/setup/sizes", {"0": {"gloo": 1}}), planted("tunings/0a/recipe", None),
    planted("all_reduce/setup/sizes", {"-4": {"gloo": 1}}), planted("tunings/0a/speed_up", "1"),
    planted("all_reduce/setup/sizes", {"4": {}}), planted("all_reduce/setup/sizes", {"4": [1]}),
    planted("all_reduce/setup/sizes", {"4": {"gloo": "1"}}),
)  # fmt: skip


@pytest.mark.parametrize("text", WRONG, ids=range(len(WRONG)))
def test_what_is_no_record_is_refused_with_host_and_file(text: object) -> None:
    with pytest.raises(FtclusterError) as caught:
        known().with_record(text)
    assert caught.value.message.startswith("xeon1: /opt/ftcluster/cluster.json cannot be read: ")
    assert len(str(caught.value)) < 500
    assert len(str(caught.value).splitlines()) == 2


@pytest.mark.usefixtures("head")
def test_two_control_nodes_plan_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hosts drained and settings measured by one control node also apply to the other."""

    def at(node: str) -> None:
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / node))

    def plan() -> tuple[list[str], str]:
        decided = RecipeRequest(("quickstart", "ranks_per_host=1")).prepared(recall()).plan
        return [one.name for one in decided.hosts], decided.backend

    for node in ("first", "second"):
        at(node)
        remember(known())
    assert plan() == (list(THREE), "impi")
    slow = MeasuredOn({"gloo": 1.0, "impi": 1210.0}, 4 << 20, THREE, "native")
    at("first")
    change_record(recall(), with_bench(slow), (), make_view(False))
    assert main(["hosts", "drain", "xeon3", "--why", "memory errors"]) == 0
    first = plan()
    assert first == (["xeon1", "xeon2"], "gloo")
    at("second")
    assert main(["hosts", "drain", "xeon2"]) == 0  # this keeps the first change
    assert plan() == (["xeon1"], "gloo")
    assert main(["hosts", "return", "xeon2"]) == 0
    assert plan() == first
    at("first")
    assert main(["hosts", "return", "xeon3"]) == 0


@pytest.mark.parametrize("root", [True, False])
def test_the_record_is_changed_where_setup_has_put_the_cluster(
    root: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The variables that named the folder need not be in the inventory any more."""
    asked: list[tuple[tuple[str, ...], dict[str, Any]]] = []

    def run_stages(
        playbook: Record, paths: tuple[Path, ...], options: tuple[str, ...], _: object
    ) -> StagesResult:
        asked.append((options, playbook.variables()))
        return StagesResult(Inventory(paths, ("a",), ("a",)), records={"a": ""})

    monkeypatch.setattr(shared, "run_stages", run_stages)
    facts = cluster(host("a", prefix="/srv/x", can_become_root=root))
    change_record(Cluster((Path("/i.ini"),), facts), {}, ("--user", "ops"), make_view(False))
    without = {} if root else {"ftcluster_root": "false"}
    given = {"record_changes": {}, "ftcluster_prefix": "/srv/x", **without}
    assert asked == [(("--user", "ops", "--limit", "a"), given)]


CHANGE = """
import sys
from pathlib import Path
from ansible_collections.ftcluster.cluster.plugins.module_utils.alone import alone_in
from ansible_collections.ftcluster.cluster.plugins.modules.cluster_record import settle

path, one = Path(sys.argv[1]), sys.argv[2]
for number in range(20):
    with alone_in(path.parent):
        entry = {"why": one, "since": "2026-01-31"}
        settle(path, "present", "", {"drained": {f"{one}-{number}": entry}}, False)
"""


def test_changes_at_the_same_time_lose_nothing(tmp_path: Path) -> None:
    file = tmp_path / "cluster.json"
    package = tmp_path / "lib/ansible_collections/ftcluster"
    package.mkdir(parents=True)
    (package / "cluster").symlink_to(Path(__file__).parents[3])
    paths = {"PYTHONPATH": ":".join([str(tmp_path / "lib"), *sys.path]), "PATH": os.environ["PATH"]}
    racing = [
        subprocess.Popen([sys.executable, "-c", CHANGE, str(file), one], env=paths) for one in "abc"
    ]
    assert [one.wait() for one in racing] == [0, 0, 0]
    assert len(record_of(file.read_text().strip()).drained) == 60


def test_the_module_changes_entries_and_keeps_the_rest(
    run_module: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    file = tmp_path / "cluster.json"

    def run(**given: Any) -> dict[str, Any]:
        return run_module(cluster_record.main, prefix=str(tmp_path), **given)

    assert (run()["changed"], file.exists()) == (False, False)
    two = with_drained({"a": Drained("x", "2026-01-31"), "b": Drained("y", "2026-01-31")})
    assert run(check=True, changes=two)["changed"]
    assert not file.exists()
    assert run(changes=two)["record"] == file.read_text().strip()
    assert oct(file.stat().st_mode & 0o777) == "0o644"
    assert not run(changes=two)["changed"]
    assert list(parse_record(run(changes=with_drained({"a": None}))["record"])["drained"]) == ["b"]
    wrong = {"all_reduce": {"setup": {"ms": {"gloo": "fast"}}}}
    assert "gloo" in run(changes=wrong)["msg"]
    assert "mapping" in run(changes={"all_reduce": {"setup": {"ms": ["fast"]}}})["msg"]
    file.write_text("{")
    assert str(file) in run(changes=two)["msg"]
    assert file.read_text() == "{"
    assert run(state="absent")["changed"]
    # a head that replaces another head
    assert list(parse_record(run(start=json.dumps(GOOD))["record"])["drained"]) == ["xeon3"]


def test_the_oldest_tunings_make_room() -> None:
    sections = parse_record(json.dumps(GOOD))
    big = {str(number): {"recipe": "x" * 30_000} for number in range(9)}
    text = rendered(merged(sections, {"tunings": big}))
    assert len(text) <= MOST
    assert list(parse_record(text)["tunings"])[-1] == "8"
    assert "0" not in parse_record(text)["tunings"]
    assert parse_record(text)["drained"] == GOOD["drained"]
    with pytest.raises(ValueError, match=str(MOST)):
        rendered({**sections, "drained": {"a": "x" * MOST}})


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> tuple[list[Any], list[dict[str, Any]]]:
    """Record the head's record at each launch, and the variables of the launches."""
    says: list[Any] = []
    launches: list[dict[str, Any]] = []

    def run_playbook(
        _: str, __: object, variables: dict[str, Any], on_event: Callable[[TaskEvent], None],
        **___: object,
    ) -> PlaybookOutcome:  # fmt: skip
        launches.append(variables)
        if not says:
            return PlaybookOutcome("done", "")
        on_event(answer_event(CLUSTER_CHANGED, says.pop(0), host="xeon1"))
        return PlaybookOutcome("failed", "", (TaskEvent("failed", "prepare", host="xeon1"),))

    monkeypatch.setattr(run_hosts, "run_playbook", run_playbook)
    remember(known())
    return says, launches


def test_a_plan_for_what_the_cluster_was_is_made_again(
    launched: tuple[list[Any], list[dict[str, Any]]], shell: Shell
) -> None:
    says, launches = launched
    says.append({"stack": "native-trackers", "record": json.dumps(GOOD)})
    out, err = shell("train quickstart --detach --json")
    assert "stack native -> native-trackers; drained: xeon3; planning again" in err
    assert launches[0]["train_known"] == known().known
    assert launches[1]["train_known"] == recall().known
    assert recall().known == known(json.dumps(GOOD), "native-trackers").known
    used = ["xeon3" in str(one["train_launch"]["hosts"]) for one in launches]
    assert used == [True, False]
    # the run that was not started leaves no files
    assert recorded_runs() == [json.loads(out)["run"]]


@pytest.mark.parametrize(
    "answer",
    [
        {"stack": "native", "record": "{"}, {"stack": "of a newer version", "record": ""},
        {"stack": None}, {"record": 7, "stack": "native"},
    ],
)  # fmt: skip
def test_an_answer_that_is_none_starts_and_changes_nothing(
    launched: tuple[list[Any], list[dict[str, Any]]], shell: Shell, answer: Any
) -> None:
    before = recall()
    launched[0].append(answer)
    said = shell("train quickstart --detach", 1).err.splitlines()[-2:]
    assert said[0].startswith("error: xeon1")
    assert (recall(), recorded_runs(), len(launched[1])) == (before, [], 1)


def test_a_cluster_that_changes_all_the_time_is_given_up(
    launched: tuple[list[Any], list[dict[str, Any]]], shell: Shell
) -> None:
    launched[0].extend({"stack": name, "record": ""} for name in ("native-trackers", "native") * 3)
    assert "nothing was started" in shell("train quickstart --detach", 1).err
    assert (len(launched[1]), recorded_runs()) == (3, [])
