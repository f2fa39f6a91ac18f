import json
from dataclasses import replace
from pathlib import Path

import pytest

from ftcluster.ansible.inventory import Inventory
from ftcluster.errors import FtclusterError
from ftcluster.launch.record import record_dir
from ftcluster.launch.run_hosts import RunHosts
from ftcluster.operations import connection
from ftcluster.operations.connection import Connection
from ftcluster.progress.view import View, make_view
from ftcluster.provision.stages import StagesResult
from ftcluster_common.protocol.run_state import RunState
from tests.unit.clusters import host

HOSTS = ("node0", "node1", "node2")
RUN_HOSTS = RunHosts((Path("hosts.ini"),), HOSTS, "ftcluster", "/opt/ftcluster")
FIRST = RunState("mrpc-1", "failed", "mrpc", HOSTS, 3, 20, 99, 100.0, 5.0, "")
# it continues the first one after node0 was lost
SECOND = replace(FIRST, run="mrpc-2", state="running", hosts=HOSTS[1:], started=200.0)


@pytest.fixture(autouse=True)
def records(monkeypatch: pytest.MonkeyPatch) -> None:
    for run in (FIRST, SECOND):
        plan = {
            "hosts": [{"name": host} for host in run.hosts],
            "spares": [],
            "rank_user": RUN_HOSTS.rank_user,
            "prefix": RUN_HOSTS.prefix,
        }
        path = record_dir(run.run) / "run.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps({"inventories": ["hosts.ini"], "plan": plan}))
    record_dir("damaged").mkdir()
    (record_dir("damaged") / "run.json").write_text("{")
    prepared = replace(SECOND, hosts=(), state="failed")  # the first head has the folder only
    listed = {"node0": [prepared, FIRST], "node1": [SECOND]}
    monkeypatch.setattr(connection, "list_runs", lambda run_hosts, *_: (listed[run_hosts.head], 0))
    monkeypatch.setattr(connection, "cluster_run_hosts", lambda *_: RUN_HOSTS)


def found(name: str = "") -> tuple[str, str]:
    run_hosts, run = connection.find(Connection(), name, View())
    return run_hosts.head, run


def test_a_run_is_found_on_the_head_that_took_over() -> None:
    assert found() == ("node1", "mrpc-2")
    assert found("mrpc-2") == ("node1", "mrpc-2")
    assert found("mrpc-1") == ("node0", "mrpc-1")
    # the beginning of an id is enough
    (record_dir("mrpc-1") / "run.json").unlink()
    assert found("mr") == ("node1", "mrpc-2")


def test_runs_of_all_heads_are_listed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert connection.all_runs(RUN_HOSTS, View()) == ([SECOND, FIRST], 0)

    def one_off(run_hosts: RunHosts, *_: object) -> tuple[list[RunState], int]:
        if run_hosts.head == "node1":
            raise FtclusterError("node1 does not answer")
        return [FIRST], 7

    monkeypatch.setattr(connection, "list_runs", one_off)
    assert connection.all_runs(RUN_HOSTS, make_view(False)) == ([FIRST], 7)
    assert "node1 does not answer" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("rank_user", "hint"), [("ftcluster", "run ftcluster setup"), ("", connection.WITHOUT_ROOT)]
)
def test_a_named_cluster_that_is_not_set_up_is_refused(
    rank_user: str, hint: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    inventory = tmp_path / "hosts.ini"
    inventory.touch()
    found = StagesResult(Inventory((inventory,), ("a",), ("a",)))
    found.facts["a"] = host("a", rank_user=rank_user)
    monkeypatch.setattr(connection, "run_stages", lambda *_, **__: found)
    named = Connection((str(inventory),))
    with pytest.raises(FtclusterError) as error:
        connection.cluster_of(named, View())
    assert error.value.message == "no cluster is set up in /opt/ftcluster on a"
    assert error.value.hint == hint
    found.set_up.add("a")
    assert connection.cluster_of(named, View()).facts.head.name == "a"
