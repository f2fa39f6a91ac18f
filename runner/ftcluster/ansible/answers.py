"""Checks the answers (results that playbooks return from hosts) before ftcluster uses them.

A compromised host can put any fact into the results of the modules that run on it. However, it
cannot choose a task's name or module, so each answer is accepted only from one task and one module.
`playbooks.py` lists the answers of each playbook.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NoReturn, TypeVar

from ftcluster.ansible.playbook import TaskEvent
from ftcluster.errors import FtclusterError
from ftcluster_common.protocol.events import EVENTS, is_data
from ftcluster_common.protocol.run_state import STATES, RunState, is_run_id, run_state_of, unpack

SET_FACT = "ansible.builtin.set_fact"
NODE_PROGRAM = "ftcluster.cluster.node_program"
STACK_LINK, CLUSTER_RECORD = "ftcluster.cluster.stack_link", "ftcluster.cluster.cluster_record"
MOST_TEXT = 4096  # maximum number of characters in a string
MOST_SHOWN = 60
MOST_NUMBER = 1 << 53
LAST_SECOND = 253_000_000_000.0  # in the year 9987; datetime ends in 9999
# maximum size of a module's result; ansible-runner drops larger results (MAX_EVENT_RES)
MOST_BYTES = 700_000
ANOTHER_VERSION = (
    "run ftcluster setup to update the host; if the error persists, somebody has changed the "
    "software on the host"
)
FEWER_RUNS = (
    "the head has too many runs: delete the folders of runs that you no longer need from "
    "PREFIX/runs on the head"
)
Answered = TypeVar("Answered")
Answered_co = TypeVar("Answered_co", covariant=True)


class WrongAnswer(ValueError):
    """An answer is malformed; the message gives the reason."""


@dataclass(frozen=True)
class Answer(Generic[Answered_co]):
    """A result that a playbook returns from a host.

    Attributes:
        task: name of the task that returns the result.
        key: name of the fact that the task sets, or key in the result of its module.
        read: function that checks and converts the value; raises WrongAnswer.
        action: fully qualified name of the task's module.
        most: hint for the error that is raised if the answer is too large, because Ansible's runner
            then drops it; "" if a missing answer is not an error.
    """

    task: str
    key: str
    read: Callable[[Any], Answered_co]
    action: str = SET_FACT
    most: str = ""


def take(answer: Answer[Answered], event: TaskEvent) -> tuple[Answered] | None:
    """Return the answer in a one-element tuple if this event contains the answer, or else None.

    Raises:
        FtclusterError: the answer is malformed or too large; the message names the host.
    """
    if event.kind not in ("ok", "changed"):
        return None
    if (event.task, event.action) != (answer.task, answer.action):
        return None
    result = event.result
    facts = result.get("ansible_facts", {}) if answer.action == SET_FACT else result
    if answer.key not in facts:
        if not answer.most:
            return None
        raise FtclusterError(
            f"{event.host}: the output of task '{event.task}' is larger than "
            f"{MOST_BYTES // 1000} kB, the limit of Ansible's runner",
            answer.most,
        )
    return (checked(answer, facts[answer.key], event.host),)


def checked(answer: Answer[Answered], value: Any, host: str) -> Answered:
    """Check the value of an answer and return the converted value.

    Raises:
        FtclusterError: the value is malformed; the message names the host.
    """
    try:
        return answer.read(value)
    except WrongAnswer as error:
        raise FtclusterError(f"{host}: invalid answer: {error}", ANOTHER_VERSION) from None


def _refuse(what: str, value: Any) -> NoReturn:
    text = ascii(value)
    raise WrongAnswer(f"{what} is {text if len(text) <= MOST_SHOWN else text[:MOST_SHOWN] + '...'}")


def run_id(value: Any) -> str:
    """Check the id of a run and return it; the id becomes the name of a folder.

    >>> run_id("../x")
    Traceback (most recent call last):
    ftcluster.ansible.answers.WrongAnswer: the id of a run is '../x'
    """
    if not is_run_id(value):
        _refuse("the id of a run", value)
    run: str = value
    return run


def line(what: str, value: Any) -> str:
    """Check a string and return it as a single line."""
    if not isinstance(value, str) or len(value) > MOST_TEXT:
        _refuse(what, value)
    return value.replace("\n", "\\n").replace("\t", "\\t")


def number(what: str, value: Any, most: float = MOST_NUMBER, whole: bool = False) -> float:
    """Check that a number is between -1 and `most`, and return it.

    Durations may be slightly negative, because the clocks of two hosts may differ.
    """
    right = isinstance(value, int if whole else (int, float)) and not isinstance(value, bool)
    if not right or not -1 <= value <= most or not math.isfinite(value):
        _refuse(what, value)
    figure: float = value
    return figure


def folder(what: str, value: Any) -> str:
    """Check an absolute path on a host and return it; "" is allowed, `..` is not."""
    path = line(what, value)
    if path != value or (path and (not path.startswith("/") or ".." in path.split("/"))):
        _refuse(what, value)
    return path


def _list(what: str, value: Any) -> list[Any]:
    if not isinstance(value, list):
        _refuse(what, value)
    return value


def run_state(value: Any) -> RunState:
    """Check the state of a run and return it; it becomes a row of `ftcluster ps`."""
    if not isinstance(value, dict):
        _refuse("a run", value)
    try:
        row = run_state_of(value)
    except (KeyError, TypeError) as error:
        raise WrongAnswer(f"a run has no field {error}") from None
    run = run_id(row.run)
    if row.state not in STATES:
        _refuse(f"the state of {run}", row.state)
    hosts = [line(f"a host of {run}", host) for host in _list(f"hosts of {run}", value["hosts"])]
    for name in ("ranks", "step", "steps"):
        number(f"{name} of {run}", value[name], whole=True)
    return RunState(
        run,
        row.state,
        line(f"recipe of {run}", row.recipe),
        tuple(hosts),
        row.ranks,
        row.step,
        row.steps,
        number(f"started of {run}", row.started, LAST_SECOND),
        number(f"seconds of {run}", row.seconds, LAST_SECOND),
        folder(f"model of {run}", row.model),
        folder(f"checkpoint of {run}", row.checkpoint),
        line(f"started_by of {run}", row.started_by),
        line(f"doing of {run}", row.doing),
        line(f"tags of {run}", row.tags),
        line(f"why of {run}", row.why),
        number(f"ends of {run}", row.ends, LAST_SECOND),
    )


def _runs(value: Any) -> tuple[tuple[RunState, ...], int]:
    """Read a page of runs from JSON; return its runs and the number of runs on later pages."""
    page = _mapping(_json("the list of runs", value))
    later = int(number("the number of runs on later pages", page.get("left"), whole=True))
    try:
        rows = unpack(_text(page.get("runs")))
    except ValueError:
        _refuse("the list of runs", page.get("runs"))
    runs = tuple(map(run_state, _list("the list of runs", rows)))
    names = [one.run for one in runs]
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise WrongAnswer(f"the run {twice[0]} is listed twice")
    if later < 0 or (later and not runs):
        _refuse("the number of runs on later pages", later)
    return runs, later


def _stopped(value: Any) -> tuple[tuple[RunState, ...], int]:
    """Return the state of a stopped run, which `_runs` reads from the lines after the first line.

    Hosts that an earlier version of ftcluster set up return only the first line.
    """
    page = _text(value).partition("\n")[2]
    return _runs(page) if page else ((), 0)


def _jobs(value: Any) -> dict[str, dict[str, Any]]:
    if not isinstance(value, dict):
        _refuse("the jobs", value)
    for run, job in value.items():
        if not isinstance(job, dict):
            _refuse(f"the job of {run_id(run)}", job)
        run_id(run)
    return value


def _stack(value: Any) -> dict[str, Any]:
    """Check the output of `ftcluster_train.host.stack`."""
    forms = {
        "stack": r"\w[\w.-]{0,99}",
        "python": r"\d{1,2}\.\d{1,3}(\.\d{1,3})?",
        "glibc": r"\d{1,2}\.\d{1,3}",
        "machine": r"\w{1,40}",
    }
    if not isinstance(value, dict):
        _refuse("the stack", value)
    for name, form in forms.items():
        one = value.get(name)
        if not isinstance(one, str) or not re.fullmatch(form, one, re.ASCII):
            _refuse(f"{name} of the stack", one)
    for package in _list("the packages", value.get("packages")):
        if not isinstance(package, dict):
            _refuse("a package", package)
        for name in ("name", "version"):
            line(f"{name} of a package", package.get(name))
        for extra in _list("extras of a package", package.get("extras")):
            line("an extra of a package", extra)
    return value


def _data(value: Any) -> dict[str, Any]:
    """Check the output of `ftcluster_train.engine.prepare`."""
    if not isinstance(value, dict) or not is_data(value.get("report") or {}):
        _refuse("the report on the data", value)
    report = {name: value["report"][name] for name in EVENTS["data"]}
    return {"report": report, "notices": _lines(value.get("notices"))}


def _caches(value: Any) -> dict[str, tuple[int, int]]:
    """Return (total bytes, bytes that no run uses) for each cache, by the name of the cache."""
    sizes = {}
    for name, pair in _mapping(value).items():
        numbers = _list(f"the bytes of a cache of {line('its name', name)}", pair)
        if len(numbers) != 2:
            _refuse("the bytes of a cache", pair)
        whole, unused = (int(number("the bytes of a cache", one, whole=True)) for one in numbers)
        sizes[line("a cache", name)] = (whole, unused)
    return sizes


def _true(value: Any) -> bool:
    if value is not True:
        _refuse("the check of the script", value)
    return True


def _mapping(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        _refuse("a value that must be a mapping", value)
    return value


def _json(what: str, value: Any) -> Any:
    try:
        return json.loads(_text(value))
    except (ValueError, RecursionError):
        _refuse(what, value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        _refuse("a value that must be a string", value)
    return value


def _lines(value: Any) -> list[str]:
    return [_text(one) for one in _list("the lines", value)]


def _findings(value: Any) -> list[dict[str, str]]:
    return [
        {name: _text(text) for name, text in _mapping(one).items()}
        for one in _list("the findings", value)
    ]


def _folder(value: Any) -> str:
    return folder("the folder of the stack", value or "")


# answers about runs
RUNS_LISTED = Answer("List the runs", "stdout", _runs, NODE_PROGRAM, most=FEWER_RUNS)
RUN_STOPPED = Answer("End the ranks", "stdout", _stopped, NODE_PROGRAM, most=ANOTHER_VERSION)
JOBS_FOUND = Answer("Return the jobs of the runs", "jobs_found", _jobs, most=FEWER_RUNS)
CACHES_FOUND = Answer("Return the sizes of the caches", "caches_found", _caches)
SCRIPT_FOUND = Answer("Report that the script exists", "script_found", _true, most=ANOTHER_VERSION)
STACK_DESCRIBED = Answer("Describe the stack", "stack_described", _stack, most=ANOTHER_VERSION)
DATA_READ = Answer("Report the data that a training run reads", "data_read", _data)
CLUSTER_CHANGED = Answer(
    "Return the cluster's current stack and record", "cluster_changed", _mapping
)
# answers of stages
HOSTS = Answer("List the hosts of the cluster", "cluster_hosts", _lines)
FACTS = Answer("Keep the facts", "preflight_facts", _mapping)
PROBLEMS = Answer("Collect problems and warnings of each host", "preflight_problems", _findings)
NOTICES = Answer("Collect problems and warnings of each host", "preflight_notices", _findings)
CHOICE = Answer("Keep the choice", "torch_stack_choice", _mapping)
REPORT = Answer("Keep the result", "verify_report", _mapping)
TABLE = Answer("Keep the result", "verify_table", _lines)
LACKS = Answer("Return the parts that the host lacks", "cluster_lacks", _lines)
CURRENT = Answer("Make the stack the current one", "current", _folder, STACK_LINK)
PREVIOUS = Answer("Make the previous stack the current one", "current", _folder, STACK_LINK)
MEASURED = Answer("Store the measurement in the cluster's record", "record", _text, CLUSTER_RECORD)
RECORDED = Answer("Change the cluster's record", "record", _text, CLUSTER_RECORD)
SYSTEM = Answer("Return the system report", "system_report", _text)
ORPHANS = Answer("Return the files of deleted accounts", "cluster_orphans", _lines)
# answers about ssh
SSH_WAY = Answer(
    "Return the parameters of the ssh connection", "msg", _mapping, "ansible.builtin.debug"
)


def clean_removed(asked: Sequence[str]) -> Answer[list[str]]:
    """Return the answer that lists the removed runs; it accepts only the ids in `asked`."""

    def read(value: Any) -> list[str]:
        runs_removed = [run_id(one) for one in _list("the list of runs removed", value)]
        for one in runs_removed:
            if one not in asked:
                raise WrongAnswer(f"the run {one} was removed without a request")
        return runs_removed

    return Answer("Return the removed runs", "clean_removed", read, most=FEWER_RUNS)


def json_object(host: str, name: str, text: bytes) -> dict[str, Any]:
    """Parse a file of a run that must contain a JSON object.

    Raises:
        FtclusterError: the file does not contain a JSON object.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise FtclusterError(
            f"{host}: {name} of the run is not a JSON object: {text[:MOST_SHOWN]!a}"
        )
    return document
