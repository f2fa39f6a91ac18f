import argparse
import json
from dataclasses import replace
from pathlib import Path

import pytest

from ftcluster.ansible.inventory import Inventory
from ftcluster.cli import run_options
from ftcluster.errors import FtclusterError
from ftcluster.launch.place import Place
from ftcluster.launch.record import record_dir
from ftcluster.provision.stages import StagesResult
from ftcluster_common.run_state import RunState
from tests.unit.clusters import host

HOSTS = ("node0", "node1", "node2")
PLACE = Place((Path("hosts.ini"),), HOSTS, "ftcluster", "/opt/ftcluster")
FIRST = RunState("mrpc-1", "failed", "mrpc", HOSTS, 3, 20, 99, 100.0, 5.0, "")
# it continues the first one after node0 was lost
SECOND = replace(FIRST, run="mrpc-2", state="running", hosts=HOSTS[1:], started=200.0)


@pytest.fixture(autouse=True)
def records(monkeypatch: pytest.MonkeyPatch) -> None:
    for run in (FIRST, SECOND):
        plan = {
            "hosts": [{"name": host} for host in run.hosts],
            "spares": [],
            "rank_user": PLACE.rank_user,
            "prefix": PLACE.prefix,
        }
        path = record_dir(run.run) / "run.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps({"inventories": ["hosts.ini"], "plan": plan}))
    record_dir("damaged").mkdir()
    (record_dir("damaged") / "run.json").write_text("{")
    prepared = replace(SECOND, hosts=(), state="failed")  # the first head has the folder only
    listed = {"node0": [prepared, FIRST], "node1": [SECOND]}
    monkeypatch.setattr(run_options, "list_runs", lambda place: listed[place.head])
    monkeypatch.setattr(run_options, "cluster_place", lambda *_: PLACE)


def found(*words: str) -> tuple[str, str]:
    options = argparse.Namespace(inventories=[])
    place, run = run_options.find(options, (), run_options.one_name(words))
    return place.head, run


def test_a_run_is_found_on_the_head_that_took_over() -> None:
    assert found() == ("node1", "mrpc-2")
    assert found("mrpc-2") == ("node1", "mrpc-2")
    assert found("mrpc-1") == ("node0", "mrpc-1")


def test_the_beginning_of_an_id_is_enough() -> None:
    (record_dir("mrpc-1") / "run.json").unlink()
    assert found("mr") == ("node1", "mrpc-2")


def test_runs_of_all_heads_are_listed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_options.all_runs(PLACE) == [SECOND, FIRST]

    def one_off(place: Place) -> list[RunState]:
        if place.head == "node1":
            raise FtclusterError("node1 does not answer")
        return [FIRST]

    monkeypatch.setattr(run_options, "list_runs", one_off)
    assert run_options.all_runs(PLACE) == [FIRST]
    assert "node1 does not answer" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("rank_user", "hint"), [("ftcluster", "run ftcluster setup"), ("", run_options.WITHOUT_ROOT)]
)
def test_a_named_cluster_that_is_not_set_up_is_refused(
    rank_user: str, hint: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    inventory = tmp_path / "hosts.ini"
    inventory.touch()
    found = StagesResult(Inventory((inventory,), ("a",), ("a",)))
    found.facts["a"] = host("a", rank_user=rank_user)
    monkeypatch.setattr(run_options, "run_stages", lambda *_, **__: found)
    parser = argparse.ArgumentParser()
    run_options.add_run_options(parser, "RUN", "")
    options = parser.parse_args(["-i", str(inventory)])
    with pytest.raises(FtclusterError) as error:
        run_options.cluster_of(options, ())
    assert error.value.message == "no cluster is set up in /opt/ftcluster on a"
    assert error.value.hint == hint
    found.set_up.add("a")
    assert run_options.cluster_of(options, ()).facts.head.name == "a"
