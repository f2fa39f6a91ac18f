"""Reads the files of a run on this control node or on the head."""

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ftcluster.ansible.answers import MOST_BYTES, json_object
from ftcluster.errors import FtclusterError
from ftcluster.launch.events import EventReader
from ftcluster.launch.record import events_file, read_record
from ftcluster.launch.run_hosts import RunHosts
from ftcluster.launch.runs import copy_logs

EVENTS, JOB = "events.jsonl", "job.json"


@dataclass(frozen=True)
class RunFiles:
    """The record and the events of a run.

    Attributes:
        record: content of run.json, or the corresponding part of job.json on the head.
        events: events from events.jsonl.
        source: host that the files were read from; "" for this control node.
    """

    run: str
    record: dict[str, Any]
    events: list[dict[str, Any]]
    source: str = ""


def ended_here(run: str) -> RunFiles | None:
    """Return a run that this control node followed to its end, from local files only, or None.

    Raises:
        FtclusterError: the local copy of the run's events is damaged.
    """
    record = read_record(run)
    if record is None or not events_file(run).exists():
        return None
    events = EventReader(events_file(run)).new_events()
    return RunFiles(run, record, events) if events and events[-1]["event"] == "end" else None


def from_head(run_hosts: RunHosts, run: str) -> RunFiles:
    """Return a run with its events so far, read from the head.

    Raises:
        FtclusterError: the head does not respond.
    """
    with tempfile.TemporaryDirectory() as folder:
        record = read_record(run)
        copies = {
            name: Path(folder) / name for name in (EVENTS, *([JOB] if record is None else ()))
        }
        for path in copies.values():
            path.touch()
        if run_hosts.is_here:
            run_dir = Path(run_hosts.at(run).train_run_dir)
            copies |= {name: run_dir / name for name in copies if (run_dir / name).is_file()}
        else:
            copy_logs(run_hosts, run, copies)
        events = EventReader(copies[EVENTS]).new_events()
        if record is None:
            with copies[JOB].open("rb") as file:
                job = json_object(run_hosts.head, JOB, file.read(MOST_BYTES))
            record = {"run": run, "recipe": job.get("recipe", {})}
    if not events:
        raise FtclusterError(
            f"run {run} has no events yet", "try again once its ranks have started"
        )
    return RunFiles(run, record, events, run_hosts.head)
