import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from ftcluster.ansible.inventory import Inventory
from ftcluster.ansible.playbooks import Runs
from ftcluster.errors import FtclusterError
from ftcluster.launch import runs
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
# this run continues the first one after node0 was lost
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
    prepared = replace(SECOND, hosts=(), state="failed")  # the first head has only the folder
    listed = {"node0": [prepared, FIRST], "node1": [SECOND]}

    def play(page: Runs, *_: object, **__: object) -> dict[str, tuple[list[RunState], int]]:
        asked = tuple(page.runs_beginnings) or ("",)
        return {
            host: ([run for run in rows if run.run.startswith(asked)], 7 * (host == "node0"))
            for host, rows in listed.items()
        }

    monkeypatch.setattr(runs, "play", play)
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


def test_a_run_of_another_control_node_is_found_on_its_head() -> None:
    """The run is not recorded here, so the hosts are asked."""
    shutil.rmtree(record_dir("mrpc-2"))
    assert found("mrpc-2") == ("node1", "mrpc-2")
    assert found() == ("node1", "mrpc-2")


def test_runs_of_all_heads_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert connection.all_runs(RUN_HOSTS, make_view(False), most=20) == ([SECOND, FIRST], 7)
    assert "no response from node2" in capsys.readouterr().err
    assert connection.all_runs(RUN_HOSTS, View(), most=1) == ([SECOND], 8)  # running runs first


def test_a_run_is_listed_once_and_as_its_head_lists_it() -> None:
    member = replace(SECOND, hosts=(), state="running")
    prepares = replace(FIRST, run="new-1", hosts=(), state="running")
    failed = replace(prepares, run="old-1", state="failed")
    listed = {"node2": [member, prepares, failed], "node1": [SECOND], "node0": [member, FIRST]}
    assert runs.merged_runs(listed, "node0") == [SECOND, FIRST, prepares]
    # the preparation on the cluster's head failed
    assert runs.merged_runs({"node0": [failed]}, "node0") == [failed]
    # the head has its copy already, and another host is still getting it
    copies = replace(failed, state="running")
    assert runs.merged_runs({"node0": [failed], "node1": [copies]}, "node0") == [copies]
    killed = replace(FIRST, state="failed")
    assert runs.merged_runs(
        {"node0": [killed], "node1": [replace(copies, run=FIRST.run)]}, "node0"
    ) == [killed]


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
