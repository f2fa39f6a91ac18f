"""The runs that a head knows of, for any control node that reaches it.

    M=ftcluster_train.host.runs
    python -m $M list RUNS_DIR             one JSON array, the newest run first
    python -m $M remove RUNS_DIR RUN ...   remove ended runs; prints those removed
    python -m $M jobs RUNS_DIR RUN         job.json of each run that begins so,
                                           and whether it can be continued

Standard library only.
"""

import contextlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ftcluster_common.run_state import STATES, RunState, is_run_id
from ftcluster_train.host.processes import run_of
from ftcluster_train.io.events import has_ended, read_events
from ftcluster_train.io.fsync import remove


def list_runs(folder: Path) -> list[RunState]:
    """Every run in a folder of runs, the newest first."""
    paths = [path for path in folder.glob("[!.]*") if is_run_id(path.name) and path.is_dir()]
    alive = runs_alive()
    found = [run_there(path, path.name in alive or in_slurm(path)) for path in paths]
    return sorted(found, key=lambda run: -run.started)


def run_there(path: Path, alive: bool) -> RunState:
    """What one run's folder says; damaged files must not hide the other runs."""
    try:
        return read_run(path, alive)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        state = "running" if alive else "failed"
        return RunState(path.name, state, "damaged", (), 0, 0, 0, path.stat().st_mtime, 0.0, "")


def read_run(path: Path, alive: bool) -> RunState:
    """What one run's folder says."""
    job, launch = _document(path / "job.json"), _document(path / "launch.json")
    events = read_events(path)
    last = {event["event"]: event for event in events}
    started = min((event["time"] for event in events), default=path.stat().st_mtime)
    end = last.get("end")
    until = end["time"] if end else time.time() if alive else max(
        (event["time"] for event in events), default=started
    )  # fmt: skip
    state = end["state"] if end else "running" if alive else "failed"
    if state not in STATES:
        raise ValueError(state)
    name = job.get("recipe", {}).get("name") or re.sub(r"-\d{8}-\d{6}-\w+$", "", path.name)
    return RunState(
        run=path.name,
        state=state,
        recipe=name,
        hosts=tuple(host["name"] for host in launch.get("hosts", ())),
        ranks=sum(len(host["ranks"]) for host in launch.get("hosts", ())),
        step=int(last.get("step", {}).get("step", 0)),
        steps=int(last.get("start", {}).get("steps", 0)),
        started=round(started, 3),
        seconds=round(until - started, 2),
        model=last.get("result", {}).get("model", ""),
        checkpoint=last.get("checkpoint", {}).get("folder", ""),
        started_by=launch.get("started_by", ""),
    )


def runs_alive() -> set[str]:
    """Ids of the runs that this user's processes on this host belong to.

    Ranks have FTCLUSTER_RUN in their environment; what prepares or supervises a run has its folder
    as an argument.
    """
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        if int(folder.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            found.add(run_of(folder))
            words = (folder / "cmdline").read_bytes().split(b"\0")
            if {b"ftcluster_train.host.supervisor", b"ftcluster_train.engine.prepare"} & set(words):
                found |= {
                    match[1].decode(errors="replace")
                    for word in words
                    if (match := re.search(rb"/runs/([^/\0]+)/?$", word))
                }
    return found


def in_slurm(path: Path) -> bool:
    """Whether a run belongs to a Slurm job that is running, on any host, and has not ended."""
    job = _document(path / "launch.json").get("slurm_job")
    if not job or has_ended(path):
        return False
    command = ["squeue", "--noheader", "--format=%T", f"--jobs={job}"]
    with contextlib.suppress(OSError):
        done = subprocess.run(command, capture_output=True, check=False)
        return done.stdout.strip() in (b"RUNNING", b"COMPLETING", b"SUSPENDED")
    return False


def remove_runs(folder: Path, runs: Sequence[str]) -> list[str]:
    """Remove the folders of runs that have ended; returns the ids of those removed."""
    alive, removed = runs_alive(), []
    for run in runs:
        path = folder / run
        if is_run_id(run) and run not in alive and path.is_dir() and not in_slurm(path):
            remove(path)
            removed.append(run)
    return removed


def find_jobs(folder: Path, beginning: str) -> dict[str, dict[str, Any]]:
    """The job.json of each run whose id is, or else begins with, a text; every host has them.

    Each has `saved` too: whether this host has a state that the run, or one that it continues, has
    saved.
    """
    names = (path.name for path in folder.glob("[!.]*") if path.name.startswith(beginning))
    ids = sorted(filter(is_run_id, names))
    found = {run: _document(folder / run / "job.json") for run in ids}
    found = {run: {**job, "saved": has_state(folder, run, job)} for run, job in found.items()}
    return {beginning: found[beginning]} if beginning in found else found


def has_state(folder: Path, run: str, job: Mapping[str, Any]) -> bool:
    """Whether a run in a folder of runs, or one that it continues, has a checkpoint or snapshot."""
    earlier = job.get("resume")
    runs = [run, *(map(str, earlier) if isinstance(earlier, list) else ())]
    places = (folder / one / kind for one in runs for kind in ("checkpoints", "snapshots"))
    return any(next(place.glob("*-*/manifest.json"), None) for place in places)


def _document(path: Path) -> dict[str, Any]:
    """A JSON object, or an empty one where there is none."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def main() -> int:
    """Entry point; returns the exit code."""
    verb, folder, *runs = sys.argv[1:]
    if verb == "list":
        print(json.dumps([run.to_dict() for run in list_runs(Path(folder))]))
    elif verb == "jobs":
        print(json.dumps(find_jobs(Path(folder), runs[0])))
    else:
        print(json.dumps(remove_runs(Path(folder), runs)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
