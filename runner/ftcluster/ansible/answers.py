"""What playbooks bring back from hosts: from which task, in which form, how much of it.

A host writes the result of its own modules, and may claim any fact there. It cannot choose a
task's name or action, so a fact is taken only of the task `set_fact` that the playbook has for it.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Generic, NoReturn, TypeVar

from ftcluster.ansible.playbook import TaskEvent
from ftcluster.errors import FtclusterError
from ftcluster_common.run_state import STATES, RunState, is_run_id, run_state_of

SET_FACT = "ansible.builtin.set_fact"
MOST_TEXT = 4096  # characters of a text
MOST_SHOWN = 60
MOST_NUMBER = 1 << 53
LAST_SECOND = 253_000_000_000.0  # in the year 9987; datetime ends in 9999
# ansible-runner leaves out a result that is longer (MAX_EVENT_RES)
MOST_BYTES = 700_000
ANOTHER_VERSION = "run ftcluster setup; if it goes on, somebody has changed the host"
Answered = TypeVar("Answered")
Answered_co = TypeVar("Answered_co", covariant=True)


class WrongAnswer(ValueError):
    """What is wrong with an answer."""


@dataclass(frozen=True)
class Answer(Generic[Answered_co]):
    """The answer that a playbook exists for.

    Attributes:
        task: the name of the task that sets the fact.
        fact: its name.
        read: checks the value; raises WrongAnswer.
    """

    task: str
    fact: str
    read: Callable[[Any], Answered_co]


def facts_set(event: TaskEvent) -> Mapping[str, Any]:
    """The facts that the playbook itself has set, never those that a host's module claims."""
    return event.result.get("ansible_facts", {}) if event.action == SET_FACT else {}


def take(answer: Answer[Answered], event: TaskEvent) -> tuple[Answered] | None:
    """The answer, if this event of a playbook has it.

    Raises:
        FtclusterError: it has another form, or is too large; names the host.
    """
    if (event.kind not in ("ok", "changed")) or event.action != SET_FACT:
        return None
    if event.task != answer.task:
        return None
    found = facts_set(event)
    if answer.fact not in found:
        raise FtclusterError(
            f"{event.host}: the answer to '{event.task}' is larger than {MOST_BYTES // 1000} kB, "
            "which is the most that Ansible's runner brings",
            "remove runs that are not needed any more: their folders in PREFIX/runs on the head",
        )
    try:
        return (answer.read(found[answer.fact]),)
    except WrongAnswer as error:
        raise FtclusterError(
            f"{event.host} answered what is refused: {error}", ANOTHER_VERSION
        ) from (None)


def _refuse(what: str, value: Any) -> NoReturn:
    text = ascii(value)
    raise WrongAnswer(f"{what} is {text if len(text) <= MOST_SHOWN else text[:MOST_SHOWN] + '...'}")


def run_id(value: Any) -> str:
    """The id of a run, which names a folder here and on the hosts.

    >>> run_id("../x")
    Traceback (most recent call last):
    ftcluster.ansible.answers.WrongAnswer: the id of a run is '../x'
    """
    if not is_run_id(value):
        _refuse("the id of a run", value)
    found: str = value
    return found


def line(what: str, value: Any) -> str:
    """A text of one line."""
    if not isinstance(value, str) or len(value) > MOST_TEXT:
        _refuse(what, value)
    return re.sub(r"[\n\t]", lambda found: ascii(found[0])[1:-1], value)


def number(what: str, value: Any, most: float = MOST_NUMBER, whole: bool = False) -> float:
    """A number from 0 to `most`, or up to 1 second below 0 where clocks differ."""
    right = isinstance(value, int if whole else (int, float)) and not isinstance(value, bool)
    if not right or not -1 <= value <= most or not math.isfinite(value):
        _refuse(what, value)
    found: float = value
    return found


def folder(what: str, value: Any) -> str:
    """An absolute path of a host without `..`, or ""."""
    found = line(what, value)
    if found != value or (found and (not found.startswith("/") or ".." in found.split("/"))):
        _refuse(what, value)
    return found


def stack_folder(event: TaskEvent) -> str:
    """The folder of the stack in use, of the module `stack_link`; "" for none.

    Raises:
        FtclusterError: it is none.
    """
    try:
        return folder("current", event.result["current"] or "")
    except WrongAnswer as error:
        raise FtclusterError(
            f"{event.host} answered what is refused: {error}", ANOTHER_VERSION
        ) from (None)


def _list(what: str, value: Any) -> list[Any]:
    if not isinstance(value, list):
        _refuse(what, value)
    return value


def run_state(value: Any) -> RunState:
    """A row of `ftcluster ps`."""
    if not isinstance(value, dict):
        _refuse("a run", value)
    known = {field.name for field in fields(RunState)}
    try:
        row = run_state_of({name: one for name, one in value.items() if name in known})
    except (KeyError, TypeError) as error:
        raise WrongAnswer(f"a run lacks {error}") from None
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
    )


def _runs(value: Any) -> tuple[RunState, ...]:
    found = tuple(map(run_state, _list("the list of runs", value)))
    names = [one.run for one in found]
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise WrongAnswer(f"the run {twice[0]} is there twice")
    return found


def _jobs(value: Any) -> dict[str, dict[str, Any]]:
    if not isinstance(value, dict):
        _refuse("the jobs", value)
    for run, job in value.items():
        if not isinstance(job, dict):
            _refuse(f"the job of {run_id(run)}", job)
        run_id(run)
    return value


def _stack(value: Any) -> dict[str, Any]:
    """What `ftcluster_train.host.stack_packages` prints."""
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


def _true(value: Any) -> bool:
    if value is not True:
        _refuse("that the script is there", value)
    return True


RUNS_LISTED = Answer("Return the list", "runs_listed", _runs)
JOBS_FOUND = Answer("Return what was found", "jobs_found", _jobs)
SCRIPT_FOUND = Answer("Return that it is there", "script_found", _true)
STACK_DESCRIBED = Answer("Return what the stack has", "stack_described", _stack)


def clean_removed(asked: Sequence[str]) -> Answer[list[str]]:
    """The runs that `clean` has removed, of those that it was asked to."""

    def read(value: Any) -> list[str]:
        found = [run_id(one) for one in _list("the list of runs removed", value)]
        for one in found:
            if one not in asked:
                raise WrongAnswer(f"the run {one} is removed, which nobody asked for")
        return found

    return Answer("Return what was removed", "clean_removed", read)


def json_object(host: str, name: str, text: bytes) -> dict[str, Any]:
    """A file of a run that is one JSON object.

    Raises:
        FtclusterError: it is something else.
    """
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise FtclusterError(f"{host}: {name} of the run is no JSON object: {text[:MOST_SHOWN]!a}")
    return found
