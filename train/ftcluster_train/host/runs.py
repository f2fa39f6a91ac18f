"""The runs that a head knows of, for any control node that reaches it.

    M=ftcluster_train.host.runs
    python -m $M list RUNS_DIR SKIP MOST [RUN ...]   a page of the runs that begin so, as JSON
    python -m $M remove RUNS_DIR RUN ...             remove ended runs; prints those removed
    python -m $M jobs RUNS_DIR RUN                   job.json of each run that begins so,
                                                     and whether it can be continued

No answer grows with the number of runs: Ansible's runner brings no large ones.

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

PAGE_BYTES = 400_000  # of JSON
MOST_JOBS = 20  # that begin alike; more than one is an error


def list_runs(
    folder: Path, beginnings: Sequence[str] = (), skip: int = 0, most: int = 0
) -> tuple[list[RunState], int]:
    """A page of a folder of runs: one of just that id, those with processes, then the newest.

    Args:
        beginnings: only runs whose ids begin with one of these; none: all.
        skip: how many to leave out, those of the pages before.
        most: how many at most; 0: as many as PAGE_BYTES hold.

    Returns:
        The runs, and how many are left for later pages.
    """
    alive = runs_alive()
    with os.scandir(folder) if folder.is_dir() else contextlib.nullcontext(()) as entries:
        paths = [
            Path(entry)
            for entry in entries
            if is_run_id(entry.name)
            and (not beginnings or entry.name.startswith(tuple(beginnings)))
            and entry.is_dir()
        ]

    def order(path: Path) -> tuple[bool, bool, float, str]:
        return path.name in beginnings, path.name in alive, _made(path), path.name

    paths.sort(key=order, reverse=True)
    page: list[RunState] = []
    size = 0
    for path in paths[skip:]:
        run = run_there(path, path.name in alive or in_slurm(path))
        size += len(json.dumps(run.to_dict())) + 2
        if page and (size > PAGE_BYTES or len(page) == most):
            break
        page.append(run)
    return page, len(paths[skip:]) - len(page)


def _made(path: Path) -> float:
    """When a run was made: its first file is not written again; seconds since 1970."""
    for file in (path / "job.json", path / "launch.json", path):
        with contextlib.suppress(OSError):
            return file.stat().st_mtime
    return 0.0


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
    ids = [beginning] if (folder / beginning).is_dir() else sorted(filter(is_run_id, names))
    found = {run: _document(folder / run / "job.json") for run in ids[:MOST_JOBS]}
    return {run: {**job, "saved": has_state(folder, run, job)} for run, job in found.items()}


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
        page, left = list_runs(Path(folder), runs[2:], int(runs[0]), int(runs[1]))
        print(json.dumps({"runs": [run.to_dict() for run in page], "left": left}))
    elif verb == "jobs":
        print(json.dumps(find_jobs(Path(folder), runs[0])))
    else:
        print(json.dumps(remove_runs(Path(folder), runs)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
