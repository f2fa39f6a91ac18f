"""The path of a host's response, from the answer to the terminal."""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any
from unittest import mock

import yaml
from ansible_collections.ftcluster.cluster.plugins.filter.finding import finding
from ansible_collections.ftcluster.cluster.plugins.filter.verify_table import verify_table
from ansible_collections.ftcluster.cluster.plugins.modules import host_facts
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.host_answer import known_facts
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.report_schema import read_report

from ftcluster.ansible.answers import CLUSTER_CHANGED, JOBS_FOUND, STACK_DESCRIBED, WrongAnswer
from ftcluster.ansible.inventory import Inventory
from ftcluster.ansible.playbook import read_event
from ftcluster.benchmark.all_reduce import MeasurementEvents, prepare
from ftcluster.benchmark.all_reduce_report import document, fp32_times, lines
from ftcluster.benchmark.scaling import measure
from ftcluster.cluster.facts import HostFacts
from ftcluster.cluster.saved import Cluster
from ftcluster.errors import FtclusterError
from ftcluster.launch import follow, runs
from ftcluster.launch.ask import common_stack
from ftcluster.launch.events import read_event_line
from ftcluster.launch.mpirun import render
from ftcluster.launch.run_hosts import run_hosts_of
from ftcluster.operations.plan.facts_file import read_facts
from ftcluster.planning.plan import plan
from ftcluster.progress.state import SetupProgress
from ftcluster.provision import check_report, check_text
from ftcluster.provision.check import Found
from ftcluster.provision.host_history import compared
from ftcluster.recipe.recipe import load_recipe
from ftcluster.stacks.catalog import load_stacks
from ftcluster.text.printable import printable
from tests.fuzz.parsers import EVENTS_SEEN, JOB, STACK, Parser, dumped, of_file, of_json, of_text
from tests.unit.check_documents import FACTS as CHECKED
from tests.unit.check_documents import report
from tests.unit.clusters import VM, cluster, host

NAMES = ("node0", "node1", "node2")
STACKS, RECIPE = load_stacks(), load_recipe("quickstart")
DOCUMENTED = yaml.safe_load(host_facts.RETURN)["facts"]["contains"]
DECIDED = {"name": "a", "connection": "ssh", "can_become_root": True, "rank_user": "ftcluster",
           "clock_offset_seconds": 0.0}  # fmt: skip
CALLS = {"seconds": 4.0, "came": {"29900": ["10.0.0.1"]}}
FINDING = {"host": "node1", "what": "a\nb", "hint": "c", "kind": "busy"}
REPORT = report(3, backends={"gloo": 3.0}, warnings=[FINDING])
REPORT["hosts"] = [{**row, "calls": CALLS} for row in REPORT["hosts"]]
RECORD = json.dumps({"format": 1, "drained": {"b": {"why": "x", "since": "2026-01-31"}}})
TALK = EVENTS_SEEN["communication"]
STEPS = [
    {**TALK, "step": step, "train_seconds": step / 2, "tokens": 9 * step, "waited_seconds": [step]}
    for step in (2, 9)
]
LINK = {**EVENTS_SEEN["link"], "ranks": [0, 1], "latency_us": 50.0, "mb_per_second": 100.0}
TIMES = [
    {**EVENTS_SEEN["all_reduce"], "bytes": 25 << 20, "type": kind, "turns": 9, "left_out": "",
     "milliseconds": {"gloo": 40.0, "impi": 16.0, "mpi": 16.0}}
    for kind in ("fp32", "bf16")
]  # fmt: skip
KNOWN = Cluster((Path("/i.ini"),), cluster(VM))
BENCH = prepare(Cluster((), cluster(host("a"), host("b"))), [25 << 20], [], None, None, 9)


def planned(answer: Any) -> object:
    """Return the launch made from a host's facts, if they are accepted."""
    found, wrong = known_facts(answer)
    if wrong:
        assert "\n" not in "".join(wrong)
        return None
    facts = HostFacts.from_dict({**found, **DECIDED, "stack": "native"})
    return render(plan(cluster(facts), RECIPE, STACKS), "r-1")


def proved(text: str) -> list[str]:
    """Return the text that setup and check print for a report of verify."""
    found = read_report(text, NAMES)
    shown = [finding(one) for one in (*found["problems"], *found["warnings"])]
    if not found["problems"]:
        shown += verify_table(found, dict.fromkeys(NAMES, CHECKED), NAMES)
    checked = Found(Inventory((), NAMES, NAMES), report=found)
    document = compared(check_report.document(checked), {})
    json.dumps(document)
    return [*shown, *check_text.lines(document)]


def event_of(kind: str, action: str) -> Callable[[Any], object]:
    """Return the event of a task for this response of its host."""

    def read(result: Any) -> object:
        if not isinstance(result, dict):
            return None
        data = {"host": "a", "task": "t", "play": "p", "task_action": action, "res": result}
        event = read_event({"event": kind, "event_data": data})
        assert event
        assert printable(event.message) == event.message
        SetupProgress().add(event)
        return event

    return of_json(read)


def changed(answer: Any) -> object:
    """Return the message of a launch if the head has another stack or record."""
    with mock.patch.object(follow, "learn"):
        return follow._changed(
            Cluster((Path("/i.ini"),), cluster(VM)), CLUSTER_CHANGED.read(answer)
        )


def resumed(answer: Any) -> object:
    """Return the training that a host reports as resumable."""
    jobs = {VM.name: JOBS_FOUND.read(answer)}
    with mock.patch.object(runs, "play", return_value=jobs):
        return runs.find_job(run_hosts_of(KNOWN), "r")


def events_of(text: str, kind: str = "") -> list[dict[str, Any]]:
    """Return the accepted events of a head."""
    found = [read_event_line(line.encode()) for line in text.split("\n")]
    return [one for one in found if one and (not kind or one["event"] == kind)]


def benched(text: str) -> list[str]:
    """Return the output of `bench allreduce` for a head's events."""
    measured = MeasurementEvents()
    for event in events_of(text):
        measured.add(event)
    measured.raise_for_other_forms()
    found = document(BENCH, measured, 12.0)
    json.dumps([found, fp32_times(found, "ms")])
    return list(lines(found))


def several(events: list[Any]) -> bytes:
    """Write a file of events."""
    return b"\n".join(map(dumped, events))


RESULT = {"changed": True, "failed": True, "rc": 1, "stdout": "a", "stderr": "b", "msg": "m",
          "results": [{"failed": True, "msg": "n"}], "stdout_lines": ["a"], "warnings": ["w"],
          "diff": {"before": "", "after": "x"}, "invocation": {"module_args": {}}}  # fmt: skip
HOST_ANSWERS = {
    "report of verify": Parser(of_text(proved), (dumped(REPORT),), (ValueError,)),
    "plan of a host's facts": Parser(
        of_json(planned),
        (dumped({name: fact["sample"] for name, fact in DOCUMENTED.items()}),),
        (FtclusterError,),
    ),
    "plan of --facts": Parser(
        of_file(lambda path: render(plan(read_facts(path), RECIPE, STACKS), "r-1"), "facts.json"),
        (dumped({"hosts": [asdict(VM)]}),), (FtclusterError,),
    ),
    **{
        f"answer to a task: {kind}": Parser(
            event_of(f"runner_on_{kind}", action), (dumped(RESULT),)
        )
        for kind, action in (
            ("ok", "ansible.builtin.debug"), ("failed", "ansible.builtin.command"),
            ("unreachable", "ansible.builtin.command"),
        )
    },
    "cluster as a head has it": Parser(
        of_json(changed), (dumped({"stack": "native", "record": RECORD}),),
        (FtclusterError, WrongAnswer),
    ),
    "training to be continued": Parser(
        of_json(resumed),
        (
            dumped({"r-1": {**json.loads(JOB), "saved": True}}),
            dumped({"r-1": {**json.loads(JOB), "saved": True,
                            "options": {"format": 1, "hosts": ["a"], "tags": ["team=nlp"]}}}),
        ),
        (FtclusterError, WrongAnswer),
    ),
    "stack of a head, for packages": Parser(
        of_json(lambda found: common_stack({"a": STACK_DESCRIBED.read(found)})), (dumped(STACK),),
        (FtclusterError, LookupError, TypeError, AttributeError, ValueError),
    ),
    "steps that a run is measured by": Parser(
        of_text(lambda text: measure(events_of(text, "communication"))),
        (several(STEPS),), (FtclusterError,),
    ),
    "events of a bench": Parser(of_text(benched), (several([LINK, *TIMES]),), (FtclusterError,)),
}  # fmt: skip
