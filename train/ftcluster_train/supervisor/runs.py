"""Lists and removes the runs of a head, for any control node that can reach the head.

    M=ftcluster_train.host.runs
    python -m $M list RUNS_DIR SKIP MOST [RUN ...]   print a page of the runs whose ids begin with
                                                     RUN, packed
    python -m $M remove RUNS_DIR RUN ...             remove ended runs; print the removed ids
    python -m $M caches RUNS_DIR KEEP [RUN ...]      print the sizes of the caches as JSON; with
                                                     KEEP 0 remove entries that no run uses
    python -m $M jobs RUNS_DIR RUN                   print job.json of each run whose id begins with
                                                     RUN, and whether it can be continued

The size of an answer is bounded, because Ansible's runner cannot transfer large answers. INDEX
keeps the rows of ended runs, because reading 10,000 folders takes seconds.

Standard library only.
"""

import contextlib
import json
import os
import re
import sys
import time
from collections import Counter
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
from ftcluster_train.io.events import EVENTS, has_ended, last_events, place_and_message
from ftcluster_train.io.fsync import GROUP_READS, remove
from ftcluster_train.io.processes import run_of
from ftcluster_train.io.scratch import remove_abandoned

PAGE_BYTES = 640_000  # size of the packed rows of about 13,000 runs
INDEX = ".ended.json"  # in the folder of all runs
CACHES = {"models": "models", "data": "data", "tokens": "cache/tokens"}  # below the prefix
ALL = "\0all"  # placeholder for a run whose models and data have not been looked up yet
NEW_SECONDS = 86400.0  # a run younger than this may be about to start
# exceptions from reading a JSON document with unexpected content
WRONG_FORM = (
    ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError,
)  # fmt: skip
DAMAGED = "damaged"  # shown as the recipe of a run with damaged files
# modules that supervise or prepare a run, by their names in this version and in older ones
PROGRAM = re.compile(rb"ftcluster_train\.(\w+\.)*(supervisor|prepare)")
COPY_SECONDS = 20.0  # a copy has ended or stalled if nothing was written for so long
# for a run without a launch and without a process here: this host cannot find out the cause
NOT_LAUNCHED = (
    "it was not launched, and no files are being copied for it: its command has failed or was "
    "killed; start it again"
)
CAUSE_CHARACTERS = 300  # longest `cause` of a row, whose page has a limited size
MOST_JOBS = 20  # most runs listed for an ambiguous beginning


def list_runs(
    folder: Path, beginnings: Sequence[str] = (), skip: int = 0, most: int = 0
) -> tuple[list[RunState], int]:
    """Return runs of a folder: an exact match first, then running ones, then the newest.

    Args:
        beginnings: beginnings of run ids; only runs that match one are returned. Empty means all.
        skip: number of runs on previous pages.
        most: maximum number of runs; 0 means all.

    Returns:
        The runs, and the number of runs for later pages.
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

    alive |= runs_copied(folder, names)
    names.sort(key=order, reverse=True)
    selected = names[skip : skip + most if most else None]
    page = [index.read(name, name in alive) for name in selected]
    index.keep(None if beginnings else names)
    # runs may have been removed since the previous page
    return page, max(0, len(names) - skip - len(page))


def listed(folder: Path, beginnings: Sequence[str] = (), skip: int = 0, most: int = 0) -> str:
    """Return the result of `list_runs` as JSON, limited to the size of one answer."""
    return json.dumps(packed_page(*list_runs(folder, beginnings, skip, most)))


def packed_page(runs: Sequence[RunState], remaining: int) -> dict[str, Any]:
    """Return the runs that fit into one answer, and the number left for later answers."""
    rows = [run.to_dict() for run in runs]
    count = len(rows)
    while len(text := pack(rows[:count])) > PAGE_BYTES and count > 1:
        count = max(1, int(0.95 * count * PAGE_BYTES / len(text)))
    return {"runs": text, "left": remaining + len(rows) - count}


class _Index:
    """The stored rows of ended runs; a row counts if its events file has not changed since."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._kept: dict[str, Any] = {}
        with contextlib.suppress(OSError, *WRONG_FORM):
            stored = json.loads((folder / INDEX).read_bytes())
            if stored["version"] == __version__:
                self._kept = dict(stored["runs"].items())
        self._new = False

    def made(self, run: str) -> float:
        """Return when a run was created, in seconds since 1970."""
        with contextlib.suppress(*WRONG_FORM):
            return float(self._kept[run][2])
        return _made(self._folder / run)

    def read(self, run: str, alive: bool) -> RunState:
        """Return the stored row of a run, or read its folder."""
        try:
            # not a Path, because making thousands of them would double the time of a listing
            events = os.stat(f"{self._folder}/{run}/{EVENTS}")  # noqa: PTH116
            key = [events.st_mtime_ns, events.st_size]
        except OSError:
            key = []
        with contextlib.suppress(*WRONG_FORM):
            if key == self._kept[run][:2] and not alive:
                return run_state_of(self._kept[run][3])
        path = self._folder / run
        state = run_there(path, alive or in_slurm(path))
        # the state of an unfinished Slurm job may still change
        ended = has_ended(path) or not _document(path / "launch.json").get("slurm_job")
        if key and ended and state.state != "running" and state.recipe != DAMAGED:
            self._kept[run] = [*key, _made(path), state.to_dict()]
            self._new = True
        return state

    def keep(self, existing: Sequence[str] | None) -> None:
        """Store new rows; drop rows of runs that are not in `existing`, unless it is None."""
        if self._new:
            names = self._kept.keys() & existing if existing is not None else self._kept
            kept = {name: self._kept[name] for name in names}
            partial = self._folder / f"{INDEX}.{os.getpid()}"
            with contextlib.suppress(OSError):  # a full disk: all folders are read again
                partial.write_text(json.dumps({"version": __version__, "runs": kept}))
                partial.rename(self._folder / INDEX)


def _made(path: Path) -> float:
    """Return when a run was created, from its first file, which is never rewritten."""
    for file in (path / "job.json", path / "launch.json", path):
        with contextlib.suppress(OSError):
            return file.stat().st_mtime
    return 0.0


def run_there(path: Path, alive: bool) -> RunState:
    """Return the state of one run, even if its files are damaged."""
    try:
        return read_run(path, alive)
    except WRONG_FORM:
        state = "running" if alive else "failed"
        return RunState(path.name, state, DAMAGED, (), 0, 0, 0, path.stat().st_mtime, 0.0, "")


def read_run(path: Path, alive: bool) -> RunState:
    """Return the state of one run, read from its folder."""
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
        seconds=round(max(0.0, until - started), 2),  # the host's clock may have been set back
        model=last.get("result", {}).get("model", ""),
        checkpoint=last.get("checkpoint", {}).get("folder", ""),
        started_by=launch.get("started_by", ""),
        tags=str(launch.get("env", {}).get(TAGS_VARIABLE, "")),
        doing="" if end else _doing(last) if alive else INTERRUPTED if launch else "",
        why=_why(state, end, last.get("error")) if end else "" if alive or launch else NOT_LAUNCHED,
        ends=_expected_end(last) if alive and not end else 0.0,
    )


def _why(state: str, end: Mapping[str, Any], error: Mapping[str, Any] | None) -> str:
    """Return a line about why a run ended; the event `end` of older versions lacks `why`."""
    failed = place_and_message(error) if error and state == "failed" else ""
    text = str(end.get("why") or failed)
    return text.partition("\n")[0][:CAUSE_CHARACTERS]


def _doing(last: Mapping[str, Mapping[str, Any]]) -> str:
    doing = str(last.get("phase", {}).get("doing", ""))
    return doing if doing.startswith(WAITS) else ""


def _expected_end(last: Mapping[str, Mapping[str, Any]]) -> float:
    """Return the expected end of training in seconds since 1970; 0 without a current step."""
    step = last.get("step", {})
    restart = last.get("restart", {}).get("time", 0.0)
    if "remaining_seconds" not in step or step["time"] < restart:
        return 0.0
    return round(float(step["time"]) + float(step["remaining_seconds"]), 1)


def runs_alive() -> set[str]:
    """Return the ids of runs that have processes of this user on this host.

    Ranks have FTCLUSTER_RUN in their environment. Programs that prepare or supervise a run have its
    folder as an argument.
    """
    runs = set()
    for folder in Path("/proc").glob("[0-9]*"):
        if int(folder.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            runs.add(run_of(folder))
            arguments = (folder / "cmdline").read_bytes().split(b"\0")
            if any(PROGRAM.fullmatch(word) for word in arguments):
                runs |= {
                    match[1].decode(errors="replace")
                    for word in arguments
                    if (match := re.search(rb"/runs/([^/\0]+)/?$", word))
                }
    return runs


def runs_copied(folder: Path, names: Sequence[str]) -> set[str]:
    """Return the runs for which a command copies files to this host before the launch.

    The action plugin `push` copies into a folder NAME.new-DIGITS and renames it at the end. A copy
    belongs to the newest run whose job.json or copies.json contains the path of NAME.

    Args:
        folder: folder of all runs.
        names: ids of the runs.
    """
    copies = Counter(
        part.with_name(part.name.rpartition(".new-")[0])
        for cache in ("data", "models", "scripts")
        for part in (folder.parent / cache).glob("*.new-*")
        if time.time() - _last_write(part) < COPY_SECONDS
    )
    runs = set()
    for name in sorted(names, key=lambda name: _made(folder / name), reverse=True) * bool(copies):
        with contextlib.suppress(OSError):
            text = (folder / name / "job.json").read_text("utf-8", errors="replace")
            with contextlib.suppress(FileNotFoundError):  # only runs of scripts have it
                text += (folder / name / "copies.json").read_text("utf-8", errors="replace")
            if targets := [path for path, count in copies.items() if count and _is_in(text, path)]:
                copies.subtract(targets)
                runs.add(name)
    return runs


def _last_write(folder: Path) -> float:
    """Return the time of the last write to a folder or a file in it, in seconds since 1970."""
    times = [0.0]
    for path in (folder, *folder.rglob("*")):
        with contextlib.suppress(OSError):  # the copy has just ended
            times.append(path.stat().st_mtime)
    return max(times)


def in_slurm(path: Path) -> bool:
    """Return True if a run has not ended and belongs to a Slurm job that is active on any host.

    The run counts as active if Slurm does not answer, so that its folder is not removed.
    """
    job = _document(path / "launch.json").get("slurm_job")
    if not job or has_ended(path):
        return False
    return job_in_queue(job).state in (RUNNING, "COMPLETING", "SUSPENDED", UNKNOWN)


def remove_runs(folder: Path, runs: Sequence[str]) -> list[str]:
    """Remove the folders of ended runs; return the ids of the removed runs."""
    alive, removed = runs_alive() | runs_copied(folder, runs), []
    for run in runs:
        path = folder / run
        if is_run_id(run) and run not in alive and path.is_dir() and not in_slurm(path):
            remove(path)
            removed.append(run)
    return removed


def clear_caches(runs: Path, running: Sequence[str], keep: bool) -> dict[str, list[int]]:
    """Remove cache entries of a host that no unfinished run uses.

    Args:
        runs: folder of all runs.
        running: ids of running runs, which may run on other hosts only.
        keep: True to remove nothing.

    Returns:
        For each cache its size in bytes, and the bytes that are, or would be, removed.
    """
    now, alive, index = time.time(), {*running, *runs_alive()}, _Index(runs)
    texts = []
    for path in runs.glob("[!.]*/"):
        row = index.read(path.name, path.name in alive)
        ended = (row.hosts and not row.doing) or has_ended(path)
        new = abs(now - _made(path)) < NEW_SECONDS
        if path.name in alive or row.state == "running" or (new and not ended):
            texts += [file.read_text("utf-8", errors="replace") for file in path.glob("*.json")]
            if not (path / "inputs.json").exists():  # the run is still looking up models and tokens
                texts.append(ALL)
    used = "\n".join(texts)
    sizes = {}
    for name, folder in CACHES.items():
        if not keep:
            remove_abandoned(runs.parent / folder)
        entries = {path: _bytes(path) for path in (runs.parent / folder).glob("[!.]*")}
        unused = [path for path in entries if ALL not in texts and not _is_in(used, path)]
        for path in () if keep else unused:
            path.unlink() if path.is_symlink() or path.is_file() else remove(path)
        sizes[name] = [sum(entries.values()), sum(entries[path] for path in unused)]
    return sizes


def _is_in(text: str, path: Path) -> bool:
    """Return True if a JSON text names a path."""
    return str(path) in text or json.dumps(str(path))[1:-1] in text


def _bytes(path: Path) -> int:
    """Return the disk space of a file or of a folder's content, in bytes."""
    total = 0
    for entry in (path, *(path.rglob("*") if path.is_dir() and not path.is_symlink() else ())):
        with contextlib.suppress(FileNotFoundError):  # another process has removed it
            total += 512 * entry.lstat().st_blocks
    return total


def find_jobs(folder: Path, beginning: str) -> dict[str, dict[str, Any]]:
    """Return job.json of the run with this id, or of each run whose id begins with the text.

    The files are the same on every host. Each result also has `saved`: True if this host has a
    saved state of the run, or of a run that it continues. The result of a single run also has
    `options`, the content of its options.json. On the head of the run it has
    `hosts`: the names of the run's hosts, the head first.
    """
    names = (path.name for path in folder.glob("[!.]*") if path.name.startswith(beginning))
    ids = [beginning] if (folder / beginning).is_dir() else sorted(filter(is_run_id, names))
    jobs = {run: _document(folder / run / "job.json") for run in ids[:MOST_JOBS]}
    for run, job in jobs.items():  # only the head has the launch
        launch = _document(folder / run / "launch.json")
        with contextlib.suppress(*WRONG_FORM):
            job["hosts"] = [str(host["name"]) for host in launch["hosts"] + launch["idle"]]
    if len(jobs) > 1:  # the caller only reports an error, so it needs no code of users
        jobs = {run: {**job, "code": None} if "code" in job else job for run, job in jobs.items()}
    for run in ids if len(jobs) == 1 else ():
        if options := _document(folder / run / "options.json"):
            jobs[run] = {**jobs[run], "options": options}
    return {run: {**job, "saved": has_state(folder, run, job)} for run, job in jobs.items()}


def has_state(folder: Path, run: str, job: Mapping[str, Any]) -> bool:
    """Return True if a run, or a run that it continues, has a checkpoint or snapshot."""
    earlier = job.get("resume")
    runs = [run, *(map(str, earlier) if isinstance(earlier, list) else ())]
    places = (folder / name / kind for name in runs for kind in ("checkpoints", "snapshots"))
    return any(next(place.glob("*-*/manifest.json"), None) for place in places)


def _document(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file; {} if the file does not contain one."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


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
