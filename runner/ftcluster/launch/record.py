"""The record of a run on this control node: run.json, and a copy of the run's events."""

import contextlib
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ftcluster.ansible.inventory import LOCALHOST
from ftcluster.errors import FtclusterError
from ftcluster.launch.place import Place
from ftcluster.paths import PRIVATE_FILE, make_state_dir, state_dir, write_atomically
from ftcluster.progress.state import RunProgress
from ftcluster_common import __version__
from ftcluster_common.run_state import RunState, is_run_id


def record_dir(run: str) -> Path:
    """The folder of a run's record.

    Raises:
        FtclusterError: the id is no plain name.
    """
    if not is_run_id(run):
        raise FtclusterError(f"{run!a} is not the id of a run", "list them: ftcluster ps")
    return state_dir() / "runs" / run


def events_file(run: str) -> Path:
    """The copy of a run's events.jsonl."""
    return record_dir(run) / "events.jsonl"


def begin_events(run: str) -> None:
    """Make the copy of a run's events, for what follows it."""
    make_state_dir(record_dir(run))
    events_file(run).touch(mode=PRIVATE_FILE)


def begin_record(run: str, known: Mapping[str, Any]) -> None:
    """Write run.json: what is known of a run before its launch."""
    document = {
        "run": run,
        "ftcluster": __version__,
        "command": shown_command(sys.argv[1:]),
        "started": round(time.time(), 3),
        **known,
    }
    _write(run, document)


def complete_record(run: str, end: Mapping[str, Any]) -> None:
    """Add a run's end to its run.json; nothing where this control node has none."""
    try:
        document = _read(run)
    except FileNotFoundError:
        return
    if document.get("end") != end:
        _write(run, {**document, "end": dict(end)})


def complete_from(listed: RunState) -> None:
    """Add what the head says of the end of a run that nobody here has followed to it."""
    try:
        known = listed.state == "running" or "end" in _read(listed.run)
    except FileNotFoundError:
        return
    if not known:
        names = ("state", "seconds", "model")
        end = {name: getattr(listed, name) for name in names}
        ended = round(listed.started + listed.seconds, 3)
        complete_record(listed.run, {**end, "ended": ended, "steps": listed.step})


def end_of(progress: RunProgress) -> dict[str, Any]:
    """What a record says of the end of a run that was followed."""
    return {
        **progress.document(),
        "exit_code": progress.end.get("exit_code"),
        "ended": progress.end.get("time"),
        "errors": progress.errors,
    }


def shown_command(words: Sequence[str]) -> list[str]:
    """A command line without extra variables, which may be secrets.

    >>> shown_command(["train", "mrpc", "-e", "ansible_password=x", "--extra-vars=y"])
    ['ftcluster', 'train', 'mrpc', '-e', '...', '--extra-vars=...']
    """
    found = ["ftcluster"]
    for number, word in enumerate(words):
        if word == "--":  # a script's own words
            return [*found, *words[number:]]
        name = word.partition("=")[0]
        if found[-1].startswith(("-e", "--e")) and not found[-1].endswith("..."):
            word = "..."
        elif word.startswith("-e") and word != "-e":
            word = "-e..."
        elif word.startswith("--e") and word != name:
            word = f"{name}=..."
        found.append(word)
    return found


def recorded_runs(beginning: str = "") -> list[str]:
    """The ids of this control node's runs that begin like that."""
    names = (path.parent.name for path in (state_dir() / "runs").glob("*/run.json"))
    return sorted(name for name in names if name.startswith(beginning))


def other_heads(place: Place) -> list[Place]:
    """Where this control node's runs are whose head is another of the cluster's hosts.

    The first host is not the head of a run that continues another one after that host was lost.
    """
    heads = {}
    for run in recorded_runs():
        with contextlib.suppress(FtclusterError):  # damaged
            one = recorded_place(run)
            if one and one.prefix == place.prefix:
                heads[one.head] = one
    return [heads[host] for host in place.hosts[1:] if host in heads]


def read_record(run: str) -> dict[str, Any] | None:
    """The run.json of a run; None where this control node has none.

    Raises:
        FtclusterError: it is damaged.
    """
    try:
        return _read(run)
    except FileNotFoundError:
        return None


def recorded_place(run: str) -> Place | None:
    """Where a run of this control node is; None where there is no record of it.

    Raises:
        FtclusterError: the record is damaged.
    """
    try:
        record = _read(run)
        plan = record["plan"]
        names = tuple(host["name"] for host in (*plan["hosts"], *plan["spares"]))
        return Place(
            inventories=tuple(map(Path, record["inventories"])),
            hosts=(LOCALHOST,) if record.get("slurm_job") else names,
            rank_user=plan["rank_user"],
            prefix=plan["prefix"],
            options=tuple(record.get("options", ())),
        )
    except FileNotFoundError:
        return None
    except (KeyError, TypeError) as error:
        raise FtclusterError(f"{_file(run)} cannot be read: {error!r}") from error


def _file(run: str) -> Path:
    return record_dir(run) / "run.json"


def _read(run: str) -> dict[str, Any]:
    try:
        document: dict[str, Any] = json.loads(_file(run).read_text(encoding="utf-8"))
    except ValueError as error:
        raise FtclusterError(f"{_file(run)} cannot be read: {error!r}") from error
    return document


def _write(run: str, document: Mapping[str, Any]) -> None:
    write_atomically(_file(run), json.dumps(document, indent=1) + "\n")
