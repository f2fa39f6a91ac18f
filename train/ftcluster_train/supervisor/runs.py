"""The runs that a head knows of, for any control node that reaches it.

    M=ftcluster_train.host.runs
    python -m $M list RUNS_DIR SKIP MOST [RUN ...]   a page of the runs that begin so, packed
    python -m $M remove RUNS_DIR RUN ...             remove ended runs; prints those removed
    python -m $M caches RUNS_DIR KEEP [RUN ...]      sizes of the caches as JSON; without KEEP (0)
                                                     removes what neither RUN nor another run uses
    python -m $M jobs RUNS_DIR RUN                   job.json of each run that begins so,
                                                     and whether it can be continued

No answer grows with the number of runs: Ansible's runner brings no large ones. What is said of an
ended run is kept in INDEX, because reading 10,000 folders takes seconds.

Standard library only.
"""

import contextlib
import json
import os
import re
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ftcluster_common import __version__
from ftcluster_common.protocol.launch import TAGS_VARIABLE
from ftcluster_common.protocol.run_state import (
    INTERRUPTED,
    STATES,
    WAITS,
    RunState,
    is_run_id,
    pack,
    run_state_of,
)
from ftcluster_common.protocol.slurm import RUNNING, UNKNOWN, job_in_queue
from ftcluster_train.io.events import EVENTS, has_ended, last_events
from ftcluster_train.io.fsync import GROUP_READS, remove
from ftcluster_train.io.processes import run_of

PAGE_BYTES = 640_000  # of packed rows, some 13,000
INDEX = ".ended.json"  # in the folder of runs
CACHES = {"models": "models", "data": "data", "tokens": "cache/tokens"}  # of the prefix
ALL = "\0all"  # stands for a run of which it is not known yet what it uses
NEW_SECONDS = 86400.0  # a run that was made so lately may be about to start
# what reading a document raises that has another form
WRONG_FORM = (
    ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError,
)  # fmt: skip
DAMAGED = "damaged"  # the recipe of a run whose files are
# what supervises or prepares a run, by the names that this version and older ones have
PROGRAM = re.compile(rb"ftcluster_train\.(\w+\.)*(supervisor|prepare)")
MOST_JOBS = 20  # that begin alike; more than one is an error


def list_runs(
    folder: Path, beginnings: Sequence[str] = (), skip: int = 0, most: int = 0
) -> tuple[list[RunState], int]:
    """Runs of a folder: one of just that id, those with processes, then the newest.

    Args:
        beginnings: only runs whose ids begin with one of these; none: all.
        skip: how many to leave out, those of the pages before.
        most: how many at most; 0: all.

    Returns:
        The runs, and how many are left for later pages.
    """
    alive, index = runs_alive(), _Index(folder)
    with os.scandir(folder) if folder.is_dir() else contextlib.nullcontext(()) as entries:
        names = [
            entry.name
            for entry in entries
            if is_run_id(entry.name)
            and (not beginnings or entry.name.startswith(tuple(beginnings)))
            and entry.is_dir()
        ]

    def order(name: str) -> tuple[bool, bool, float, str]:
        return name in beginnings, name in alive, index.made(name), name

    names.sort(key=order, reverse=True)
    some = names[skip : skip + most if most else None]
    page = [index.read(name, name in alive) for name in some]
    index.keep(None if beginnings else names)
    return page, max(0, len(names) - skip - len(page))  # some may have been removed since page 1


def listed(folder: Path, beginnings: Sequence[str] = (), skip: int = 0, most: int = 0) -> str:
    """What `list_runs` gives, as JSON, as much of it as fits into one answer."""
    return json.dumps(packed_page(*list_runs(folder, beginnings, skip, most)))


def packed_page(runs: Sequence[RunState], left: int) -> dict[str, Any]:
    """What of some runs fits into one answer, and how many are left for later ones."""
    rows = [run.to_dict() for run in runs]
    count = len(rows)
    while len(text := pack(rows[:count])) > PAGE_BYTES and count > 1:
        count = max(1, int(0.95 * count * PAGE_BYTES / len(text)))
    return {"runs": text, "left": left + len(rows) - count}


class _Index:
    """What was said of runs that have ended, by run, with time and size of their events then."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._kept: dict[str, Any] = {}
        with contextlib.suppress(OSError, *WRONG_FORM):
            found = json.loads((folder / INDEX).read_bytes())
            if found["version"] == __version__:
                self._kept = dict(found["runs"].items())
        self._new = False

    def made(self, run: str) -> float:
        """When a run was made, in seconds since 1970."""
        with contextlib.suppress(*WRONG_FORM):
            return float(self._kept[run][2])
        return _made(self._folder / run)

    def read(self, run: str, alive: bool) -> RunState:
        """What is kept of a run, or what its folder says."""
        try:
            # a Path of each of thousands would take as long as all else
            events = os.stat(f"{self._folder}/{run}/{EVENTS}")  # noqa: PTH116
            key = [events.st_mtime_ns, events.st_size]
        except OSError:
            key = []
        with contextlib.suppress(*WRONG_FORM):
            if key == self._kept[run][:2] and not alive:
                return run_state_of(self._kept[run][3])
        path = self._folder / run
        found = run_there(path, alive or in_slurm(path))
        # without an end, Slurm knows whether it goes on
        ended = has_ended(path) or not _document(path / "launch.json").get("slurm_job")
        if key and ended and found.state != "running" and found.recipe != DAMAGED:
            self._kept[run] = [*key, _made(path), found.to_dict()]
            self._new = True
        return found

    def keep(self, there: Sequence[str] | None) -> None:
        """Write what is new, of the runs that are `there` where all of them are known."""
        if self._new:
            names = self._kept.keys() & there if there is not None else self._kept
            kept = {name: self._kept[name] for name in names}
            partial = self._folder / f"{INDEX}.{os.getpid()}"
            with contextlib.suppress(OSError):  # a full disk: all folders are read again
                partial.write_text(json.dumps({"version": __version__, "runs": kept}))
                partial.rename(self._folder / INDEX)


def _made(path: Path) -> float:
    """When a run was made: its first file is not written again."""
    for file in (path / "job.json", path / "launch.json", path):
        with contextlib.suppress(OSError):
            return file.stat().st_mtime
    return 0.0


def run_there(path: Path, alive: bool) -> RunState:
    """What one run's folder says; damaged files must not hide the other runs."""
    try:
        return read_run(path, alive)
    except WRONG_FORM:
        state = "running" if alive else "failed"
        return RunState(path.name, state, DAMAGED, (), 0, 0, 0, path.stat().st_mtime, 0.0, "")


def read_run(path: Path, alive: bool) -> RunState:
    """What one run's folder says."""
    job, launch = _document(path / "job.json"), _document(path / "launch.json")
    last = last_events(path)
    started = last[""]["time"] if last else path.stat().st_mtime
    end = last.get("end")
    until = end["time"] if end else time.time() if alive else max(
        (event["time"] for event in last.values()), default=started
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
        ranks=sum(len(host.get("ranks", ())) for host in launch.get("hosts", ())),
        step=int(last.get("step", {}).get("step", 0)),
        steps=int(last.get("start", {}).get("steps", 0)),
        started=round(started, 3),
        seconds=round(until - started, 2),
        model=last.get("result", {}).get("model", ""),
        checkpoint=last.get("checkpoint", {}).get("folder", ""),
        started_by=launch.get("started_by", ""),
        tags=str(launch.get("env", {}).get(TAGS_VARIABLE, "")),
        doing="" if end else _doing(last) if alive else INTERRUPTED if launch else "",
    )


def _doing(last: Mapping[str, Mapping[str, Any]]) -> str:
    doing = str(last.get("phase", {}).get("doing", ""))
    return doing if doing.startswith(WAITS) else ""


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
            if any(PROGRAM.fullmatch(word) for word in words):
                found |= {
                    match[1].decode(errors="replace")
                    for word in words
                    if (match := re.search(rb"/runs/([^/\0]+)/?$", word))
                }
    return found


def in_slurm(path: Path) -> bool:
    """Whether a run belongs to a Slurm job that is running, on any host, and has not ended.

    It counts as running where Slurm does not answer: it may be, and its folder is not removed.
    """
    job = _document(path / "launch.json").get("slurm_job")
    if not job or has_ended(path):
        return False
    return job_in_queue(job).state in (RUNNING, "COMPLETING", "SUSPENDED", UNKNOWN)


def remove_runs(folder: Path, runs: Sequence[str]) -> list[str]:
    """Remove the folders of runs that have ended; returns the ids of those removed."""
    alive, removed = runs_alive(), []
    for run in runs:
        path = folder / run
        if is_run_id(run) and run not in alive and path.is_dir() and not in_slurm(path):
            remove(path)
            removed.append(run)
    return removed


def clear_caches(runs: Path, running: Sequence[str], keep: bool) -> dict[str, list[int]]:
    """Remove what the caches of a host have, but for what runs use that have not ended.

    Args:
        runs: the folder of all runs.
        running: ids of some that are running, maybe on other hosts only.
        keep: whether nothing is removed.

    Returns:
        By the cache's name: its bytes, and those that are, or would be, removed.
    """
    now, alive, index = time.time(), {*running, *runs_alive()}, _Index(runs)
    texts = []
    for path in runs.glob("[!.]*/"):
        row = index.read(path.name, path.name in alive)
        ended = (row.hosts and not row.doing) or has_ended(path)
        new = abs(now - _made(path)) < NEW_SECONDS
        if path.name in alive or row.state == "running" or (new and not ended):
            texts += [file.read_text("utf-8", errors="replace") for file in path.glob("*.json")]
            if not (path / "inputs.json").exists():  # it finds models and tokens meanwhile
                texts.append(ALL)
    used = "\n".join(texts)
    sizes = {}
    for name, folder in CACHES.items():
        entries = {path: _bytes(path) for path in (runs.parent / folder).glob("[!.]*")}
        unused = [path for path in entries if ALL not in texts and not _is_in(used, path)]
        for path in () if keep else unused:
            path.unlink() if path.is_symlink() or path.is_file() else remove(path)
        sizes[name] = [sum(entries.values()), sum(entries[path] for path in unused)]
    return sizes


def _is_in(text: str, path: Path) -> bool:
    """Whether JSON names a path."""
    return str(path) in text or json.dumps(str(path))[1:-1] in text


def _bytes(path: Path) -> int:
    """What a file, or a folder with all that is in it, takes of the disk."""
    total = 0
    for one in (path, *(path.rglob("*") if path.is_dir() and not path.is_symlink() else ())):
        with contextlib.suppress(FileNotFoundError):  # it is being removed
            total += 512 * one.lstat().st_blocks
    return total


def find_jobs(folder: Path, beginning: str) -> dict[str, dict[str, Any]]:
    """The job.json of each run whose id is, or else begins with, a text; every host has them.

    Each has `saved` too: whether this host has a state that the run, or one that it continues, has
    saved.
    """
    names = (path.name for path in folder.glob("[!.]*") if path.name.startswith(beginning))
    ids = [beginning] if (folder / beginning).is_dir() else sorted(filter(is_run_id, names))
    found = {run: _document(folder / run / "job.json") for run in ids[:MOST_JOBS]}
    if len(found) > 1:  # an error, which needs no files of the user's own
        found = {run: {**job, "code": None} if "code" in job else job for run, job in found.items()}
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
    os.umask(GROUP_READS)
    if verb == "list":
        print(listed(Path(folder), runs[2:], int(runs[0]), int(runs[1])))
    elif verb == "caches":
        print(json.dumps(clear_caches(Path(folder), runs[1:], runs[0] != "0")))
    elif verb == "jobs":
        print(json.dumps(find_jobs(Path(folder), runs[0])))
    else:
        print(json.dumps(remove_runs(Path(folder), runs)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
