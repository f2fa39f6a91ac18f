"""List the runs of a cluster, show their logs, fetch their models, and stop them."""

import os
import re
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from ftcluster.errors import FtclusterError, UsageError
from ftcluster.launch import follow
from ftcluster.launch.record import complete_from, read_record, recorded_runs
from ftcluster.launch.run_hosts import RunHosts
from ftcluster.launch.runs import copy_logs, fetch_model, fetch_outputs, find_run
from ftcluster.operations.connection import Connection, all_runs, cluster_run_hosts, find
from ftcluster.operations.result import Result
from ftcluster.progress.format import duration
from ftcluster.progress.view import View
from ftcluster.recipe.model_code import listed, unknown_files
from ftcluster.text.host_names import short_names
from ftcluster.text.plural import counted
from ftcluster.text.printable import printable
from ftcluster.text.table import aligned
from ftcluster_common.protocol.run_state import INTERRUPTED, WAITS, RunState

COLUMNS = ("run", "state", "step", "hosts", "started", "time", "by", "tags")
# the columns that a narrow terminal omits, in this order
NARROW = ("started", "by", "hosts", "tags")
ALL_RANKS = "ranks.log"
PIECE_BYTES = 1 << 20  # bytes of a log in memory at once
CAUSES = 3  # maximum number of ended runs whose reasons are listed below the table
LISTED = 20  # maximum number of a script's files to show


@dataclass(frozen=True)
class Listing:
    """The runs of a cluster.

    Attributes:
        runs: all users' runs, the newest first.
        omitted: number of runs that were not returned.
        hosts: names of the cluster's hosts, the head first.
    """

    runs: tuple[RunState, ...]
    omitted: int
    hosts: tuple[str, ...]


def list_runs(
    connection: Connection, view: View, most: int = 0, beginnings: Sequence[str] = ()
) -> Listing:
    """Return all users' runs on a cluster.

    Args:
        most: maximum number of runs to return; 0 for all runs. Running runs are returned first,
            then the newest.
        beginnings: beginnings of the ids of the runs to return; if empty, all runs.

    Raises:
        FtclusterError: the head does not respond.
    """
    run_hosts = cluster_run_hosts(connection, view)
    runs, omitted = all_runs(run_hosts, view, beginnings, most)
    here = set(recorded_runs())
    for run in runs:
        if run.run in here:
            complete_from(run)
    return Listing(tuple(runs), omitted, run_hosts.hosts)


def table(runs: Sequence[RunState], width: int | None = None) -> list[str]:
    """Return a table of runs, the reasons why the newest runs ended, and a hint.

    Args:
        width: width of the terminal in characters; columns of NARROW are omitted until the table
            fits. None keeps all columns.
    """
    rows = [COLUMNS, *map(_row, runs)]
    if not any(run.tags for run in runs):
        rows = [row[:-1] for row in rows]
    for name in NARROW:
        if name in rows[0] and width is not None and max(map(len, aligned(rows))) > width:
            place = rows[0].index(name)
            rows = [(*row[:place], *row[place + 1 :]) for row in rows]
    notes = [f"{run.run} {run.state}: {run.why}" for run in runs if run.why][:CAUSES]
    if any(run.doing == INTERRUPTED for run in runs):
        notes += [
            f"{INTERRUPTED}: the run's supervisor is gone; to continue the run: ftcluster attach "
            "RUN"
        ]
    return [*aligned(rows), *notes]


def uses(runs: Sequence[RunState], hosts: Sequence[str]) -> list[str]:
    """Return lines with the users of hosts, the free hosts, and the hosts that runs wait for.

    A run that waits for hosts uses no host.

    Args:
        hosts: names of the cluster's hosts.
    """
    waits = [f"{run.run} waits for {_doing(run)[1]}" for run in runs if _doing(run)[1]]
    active = [run for run in runs if run.state == "running" and run.hosts and not run.doing]
    if len(hosts) < 2 or not active:
        return waits
    used = {host for run in active for host in run.hosts}
    free = short_names([host for host in hosts if host not in used]) or "none"
    return [
        *(f"{short_names(run.hosts)}: used by {_use(run)}" for run in active),
        f"free: {free}",
        *waits,
    ]


def _use(run: RunState) -> str:
    user = f"{run.started_by}, " if run.started_by else ""
    until = f", until about {_clock(run.ends)}" if run.ends > time.time() else ""
    return f"{user}{run.run}, since {_clock(run.started)}{until}"


def _clock(seconds: float) -> str:
    moment = datetime.fromtimestamp(seconds).astimezone()
    today = moment.date() == datetime.now().astimezone().date()
    return f"{moment:%H:%M}" if today else f"{moment:%Y-%m-%d %H:%M}"


def _doing(run: RunState) -> tuple[str, str]:
    """Return a run's activity other than training, and the hosts that it waits for, or "".

    >>> _doing(RunState("r", "running", "r", (), 0, 0, 0, 0, 0, "", doing="waiting: n1: run a"))
    ('waiting', 'n1: run a')
    """
    if match := re.fullmatch(rf"({WAITS}(?: \(place \d+ in the queue\))?): (.*)", run.doing):
        return match[1], match[2]
    return run.doing, ""


def _row(run: RunState) -> tuple[str, ...]:
    started = datetime.fromtimestamp(run.started).astimezone()
    # until its first step, a run downloads and tokenizes. Launches that other versions of ftcluster
    # wrote may lack the number of ranks
    prepares = run.state == "running" and not run.ranks and not run.step
    return (
        run.run,
        _doing(run)[0] or ("preparing" if prepares else run.state),
        f"{run.step}/{run.steps}" if run.steps else "-",
        short_names(run.hosts) or "-",
        f"{started:%Y-%m-%d %H:%M}",
        duration(run.seconds),
        run.started_by or "-",
        run.tags or "-",
    )


@dataclass(frozen=True)
class LogsRequest:
    """A request for the output of a run's ranks.

    Attributes:
        run: the run's id or the beginning of the id; "" for the newest run.
        rank: number of the rank whose output is shown, counted from 0; None for all ranks.
        follow: True if the output is shown until the run ends.
    """

    connection: Connection = field(default_factory=Connection)
    run: str = ""
    rank: int | None = None
    follow: bool = False


def logs(request: LogsRequest, show: Callable[[str], None], view: View) -> None:
    """Show the output of a run's ranks, with control characters escaped.

    Args:
        show: function that is called with whole lines as they arrive. The last line may be
            incomplete.

    Raises:
        UsageError: there is no such rank.
        FtclusterError: there is no such run, or its head does not respond.
        Interrupted: the user stopped the command.
    """
    rank = request.rank
    file = ALL_RANKS if rank is None else f"logs/rank-{rank}.log"
    with tempfile.TemporaryDirectory() as folder:
        run_hosts, run = find(request.connection, request.run, view)
        if rank is not None:
            _check_rank(run, rank, find_run(run_hosts, run).ranks)
        destination = Path(folder) / "log"
        destination.touch()
        with destination.open("rb") as log:

            def take(incomplete: bool = False) -> None:
                while data := log.read(PIECE_BYTES):
                    whole = len(data) == PIECE_BYTES
                    end = data.rfind(b"\n") + 1
                    # a line may be longer than a piece, and the last line may not be complete yet
                    end = len(data) if (incomplete and not whole) or (whole and not end) else end
                    log.seek(end - len(data), os.SEEK_CUR)
                    if not end:
                        return
                    show(printable(data[:end].decode(errors="replace")))

            copy_logs(run_hosts, run, {file: destination}, request.follow, take)
            take(incomplete=True)


def _check_rank(run: str, rank: int, ranks: int) -> None:
    if rank >= ranks:
        numbers = f": 0 to {ranks - 1}" if ranks else ""
        raise UsageError(f"{run} has no rank {rank}, only {counted(ranks, 'rank')}{numbers}")


def fetch(
    connection: Connection, run: str, folder: str, view: View, reports: bool = False
) -> Result:
    """Copy the model of a run, or the files that its script has written, from the head.

    The folder gets its final name only once all files are copied.

    Args:
        run: the run's id or the beginning of the id; "" for the newest run.
        folder: path of a new or empty local folder; "" for a folder named after the run.
        reports: True to copy the files of the run's trackers instead.

    Raises:
        FtclusterError: there is no such run, the run has no such files, or the folder is not empty.
    """
    run_hosts, name = find(connection, run, view)
    record = read_record(name) or {}
    model = record.get("end", {}).get("model")  # otherwise only the head records the model
    if not model and not reports:
        state = find_run(run_hosts, name)
        model = state.model
        if not model and record.get("kind") == "train":
            raise FtclusterError(
                f"run {name} has not written a model; its state is {state.state}",
                _how_to_get_a_model(state),
            )
    path = Path(folder or name)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise FtclusterError(f"{path} is not empty", "choose another folder")
    document = {"state": "done", "run": name}
    if reports:
        fetch_model(run_hosts, name, f"{run_hosts.at(name).train_run_dir}/reports", path)
    elif model:
        fetch_model(run_hosts, name, str(model), path)
        return _fetched_model({**document, "model": str(path.absolute())}, path)
    else:
        _fetch_outputs(run_hosts, name, path)
    sizes = {str(file.relative_to(path)): file.stat().st_size for file in _files(path)}
    return Result(
        {**document, "model": None, "folder": str(path.absolute()), "files": sizes},
        (f"{counted(len(sizes), 'file')}, {_size(sum(sizes.values()))}: {path}", *_listing(sizes)),
    )


def _how_to_get_a_model(state: RunState) -> str:
    """Return a hint for the user of a training run that has written no model."""
    if state.state == "running":
        return f"to wait until the run ends: ftcluster attach {state.run}"
    if state.checkpoint or state.step:
        return f"to continue the run: ftcluster train --resume {state.run}"
    return f"to find the reason: ftcluster logs {state.run}"


def _fetched_model(document: dict[str, Any], path: Path) -> Result:
    """Return the result of fetching a model, with a note on files that may be code."""
    unknown = unknown_files(path)
    if not unknown:
        return Result(document, (f"model: {path}",))
    note = (
        "note: the model contains files that ftcluster's training does not write: "
        f"{listed(unknown)}. Do not open them with a program that would execute them; "
        "ftcluster.load refuses to load the folder"
    )
    return Result({**document, "unknown_files": unknown}, (f"model: {path}", note))


def _fetch_outputs(run_hosts: RunHosts, run: str, path: Path) -> None:
    try:
        fetch_outputs(run_hosts, run, path)
    except FtclusterError as error:
        raise FtclusterError(
            f"run {run} has no model, and its script's files cannot be copied\n  {error.message}",
            "only files in the script's start folder on the head are copied; make rank 0 write "
            "its files there, with relative paths",
        ) from error


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _listing(sizes: Mapping[str, int]) -> list[str]:
    """Return lines with the largest files and their sizes."""
    largest = sorted(sizes, key=lambda name: -sizes[name])[:LISTED]
    more = len(sizes) - len(largest)
    rows = aligned((f"  {_size(sizes[name])}", printable(name)) for name in largest)
    return [*rows, *([f"  and {counted(more, 'smaller file')}"] if more else [])]


def _size(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count >= 1e5 else f"{count:,} bytes"


def stop(connection: Connection, names: Sequence[str], force: bool, view: View) -> Result:
    """Stop runs on all their hosts. If a run cannot be stopped, the other runs are still stopped.

    Args:
        names: ids of the runs, or the beginnings of their ids.
        force: True to stop the runs at once, without saving anything.

    Raises:
        FtclusterError: a run does not exist, and no run was stopped; or some runs may still be
            running.
    """
    # find all runs first, so that a misspelt name stops no run
    runs = dict.fromkeys(find(connection, name, view) for name in names)
    ended = _end(list(runs), force)
    documents = [state.to_dict() for _, state in ended]
    lines = tuple(line for hosts, state in ended for line in _ended_lines(hosts.head, state))
    return Result(documents if len(names) > 1 else documents[0], lines)


def _end(runs: Sequence[tuple[RunHosts, str]], force: bool) -> list[tuple[RunHosts, RunState]]:
    ended, failed = [], []
    for run_hosts, name in runs:
        try:
            state = follow.stop(run_hosts, name, force=force) or find_run(run_hosts, name)
        except FtclusterError as error:
            failed.append(error)
            continue
        complete_from(state)
        ended.append((run_hosts, state))
    if failed:
        message = "\n  ".join(error.message for error in failed)
        hints = "\n  ".join(dict.fromkeys(error.hint for error in failed if error.hint))
        stopped = [state.run for _, state in ended]
        raise FtclusterError(message, hints, {"stopped": stopped} if stopped else {})
    return ended


def _ended_lines(head: str, state: RunState) -> list[str]:
    lines = [f"{state.run}: {state.state}"]
    if state.state == "stopped" and state.checkpoint:
        lines.append(f"checkpoint on {head}: {state.checkpoint}")
        lines.append(f"to continue the run: ftcluster train --resume {state.run}")
    return lines
