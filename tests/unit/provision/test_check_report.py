import json
import re
from typing import Any

from ftcluster.ansible.playbook import TaskEvent
from ftcluster.provision.check_report import document, spread
from ftcluster.provision.host_history import compared
from tests.programs import ROOT
from tests.unit.check_documents import facts, found, name, report, row

PAGE = (ROOT / "docs/json.md").read_text(encoding="utf-8")
KINDS = PAGE.split("| kind | problem |")[1].split("\n## ")[0]
OFF = TaskEvent(
    "unreachable", "preflight", "Find out whether root can be had", "node1",
    "Task failed: Failed to connect to the host via ssh: mux_client: Broken pipe\n"
    "ssh: connect to host 10.0.0.1 port 22: No route to host",
)  # fmt: skip


def test_a_host_that_is_off_is_not_blamed_on_the_task_that_ansible_was_at() -> None:
    reason = "ssh: connect to host 10.0.0.1 port 22: No route to host"
    assert OFF.problem == f"ssh does not connect: {reason}"


def findings(what: dict[str, Any], key: str) -> list[tuple[str, str]]:
    return [(finding["host"], finding["kind"]) for finding in what[key]]


def test_a_cluster_without_a_fault_is_fit() -> None:
    result = document(found(3))
    assert (result["format"], result["state"], result["head"]) == (1, "fit", "node0")
    assert result["problems"] == result["warnings"] == []
    assert [host["name"] for host in result["hosts"]] == ["node0", "node1", "node2"]
    assert result["latency_us"] == {"min": 40.0, "median": 40.0, "max": 41.0}
    assert result["mb_per_second"] == {"min": 1001.0, "median": 1002.0, "max": 1002.0}
    assert (result["all_reduce_ms"], result["packages"], result["seconds"]) == (3.0, 60, 9.0)
    assert result["hosts"][0]["stack"] == "native"
    assert json.loads(json.dumps(result)) == result
    alone = document(found(1))
    assert (alone["state"], alone["pairs"]) == ("fit", [])
    assert alone["latency_us"] is alone["mb_per_second"] is alone["all_reduce_ms"] is None


def test_a_host_that_is_off_is_named_and_the_others_are_there() -> None:
    cluster = found(3, failures={"node1": OFF})
    del cluster.facts["node1"]
    cluster.report = report(3, hosts=[row(0), row(2)])
    result = document(cluster)
    assert result["state"] == "unfit"
    assert result["problems"] == [
        {
            "host": "node1",
            "what": "it does not answer: ssh: connect to host 10.0.0.1 port 22: No route to host",
            "hint": "check that the host is on and that ssh connects to it",
            "kind": "unreachable",
        }
    ]
    assert [host["answers"] for host in result["hosts"]] == [True, False, True]
    assert [bool(host["speed"]) for host in result["hosts"]] == [True, False, True]


def test_a_task_that_failed_is_a_problem() -> None:
    broken = TaskEvent("failed", "preflight", "Gather facts", "node1", "no python")
    (problem,) = document(found(2, failures={"node1": broken}))["problems"]
    assert (problem["what"], problem["kind"]) == ("Gather facts: no python", "ansible")
    assert "ftcluster check -v" in problem["hint"]
    # verify's findings are included
    slow = {"host": "node1", "what": "it is slow", "hint": "look", "kind": "straggler"}
    wrong = {"host": "node0", "what": "wrong sum", "hint": "", "kind": "result"}
    result = document(found(2, report=report(2, warnings=[slow], problems=[wrong])))
    assert (result["warnings"], result["problems"]) == ([slow], [wrong])
    # with only warnings the cluster is fit
    alone = document(found(1, facts={"node0": facts(0, tcmalloc="")}))
    assert (alone["state"], findings(alone, "warnings")) == ("fit", [("node0", "allocator")])


def test_without_the_head_nothing_is_measured_and_that_is_said() -> None:
    cluster = found(2, failures={"node0": OFF}, report=None)
    del cluster.facts["node0"]
    result = document(cluster)
    assert findings(result, "problems") == [("node0", "unreachable")]
    assert findings(result, "warnings") == [("node0", "unmeasured")]
    assert [host["speed"] for host in result["hosts"]] == [None, None]


def test_hosts_that_were_never_set_up() -> None:
    bare = {name(number): facts(number, current="", tcmalloc="") for number in range(2)}
    result = document(found(2, facts=bare, report=None))
    assert [problem["what"] for problem in result["problems"]] == [
        "no stack is set up in /opt/ftcluster"
    ] * 2
    assert {problem["hint"] for problem in result["problems"]} == {"run ftcluster setup"}
    assert result["warnings"] == []


def test_findings_of_preflight() -> None:
    cluster = found(
        1,
        problems={"node0": [{"what": "1.0 GB free", "hint": "free some space"}]},
        notices={"node0": [{"what": "its kernel denies AMX", "hint": "boot another"}]},
    )
    result = document(cluster)
    assert result["problems"] == [
        {
            "host": "node0", "what": "1.0 GB free",
            "hint": "free some space", "kind": "preflight",
        }
    ]  # fmt: skip
    assert result["warnings"][0]["hint"] == "boot another"


def test_a_head_that_was_left_out_is_there_all_the_same() -> None:
    cluster = found(2, report=report(2, hosts=[row(7), row(0), row(1)]))
    result = document(cluster)
    assert result["head"] == "node7"
    assert [host["name"] for host in result["hosts"]] == ["node0", "node1", "node7"]


def test_the_page_has_every_key_and_no_other() -> None:
    result = compared(document(found(2)), {})
    finding = {"host": "", "what": "", "hint": "", "kind": ""}
    parts = [result, result["hosts"][0], result["hosts"][0]["speed"], result["pairs"][0], finding]
    tables = re.findall(r"\| key \| type \| meaning \|\n\|[-|]+\|\n((?:\|.*\n)+)", PAGE)
    assert len(tables) == len(parts)
    for table, part in zip(tables, parts, strict=True):
        cells = [line.split("|")[1] for line in table.splitlines()]
        assert set(re.findall(r"`(\w+)`", "".join(cells))) == set(part)


def test_the_page_has_every_kind() -> None:
    kinds = set(re.findall(r"^\| `(\w+)` \|", KINDS, re.MULTILINE))
    named = "unreachable ansible preflight stack ssh network launch packages kernel result"
    assert kinds == {
        *named.split(),
        "straggler",
        "link",
        "busy",
        "degraded",
        "firewall",
        "allocator",
        "unmeasured",
    }
    text = "".join(
        path.read_text(encoding="utf-8")
        for source in ("train/ftcluster_train", "runner/ftcluster/provision")
        for path in (ROOT / source).rglob("*.py")
    )
    assert all(f'"{kind}"' in text for kind in kinds)


def test_of_no_values_there_is_no_median() -> None:
    assert spread([]) is None
    assert spread([2.0, 1.0]) == {"min": 1.0, "median": 1.5, "max": 2.0}
