"""The runs of a cluster: lists them, shows their logs, brings models home, ends them."""

import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from ftcluster.errors import FtclusterError, UsageError
from ftcluster.launch import follow
from ftcluster.launch.record import complete_from
from ftcluster.launch.run_hosts import RunHosts
from ftcluster.launch.runs import copy_log, fetch_model, find_run
from ftcluster.operations.connection import Connection, all_runs, cluster_run_hosts, find
from ftcluster.operations.result import Result
from ftcluster.progress.format import duration
from ftcluster.progress.view import View
from ftcluster.text.host_names import short_names
from ftcluster.text.plural import counted
from ftcluster.text.printable import printable
from ftcluster.text.table import aligned
from ftcluster_common.run_state import RunState

COLUMNS = ("run", "state", "step", "hosts", "started", "time", "by")
ALL_RANKS = "ranks.log"


def list_runs(connection: Connection, view: View) -> tuple[RunState, ...]:
    """The runs on a cluster, the newest first, whoever started them.

    Raises:
        FtclusterError: the head does not answer.
    """
    runs = tuple(all_runs(cluster_run_hosts(connection, view), view))
    for run in runs:
        complete_from(run)
    return runs


def table(runs: Sequence[RunState]) -> list[str]:
    """A line a run, below a line of headings."""
    return aligned([COLUMNS, *map(_row, runs)])


def _row(one: RunState) -> tuple[str, ...]:
    started = datetime.fromtimestamp(one.started).astimezone()
    prepares = one.state == "running" and not one.ranks  # downloads and tokenizes
    return (
        one.run,
        "preparing" if prepares else one.state,
        f"{one.step}/{one.steps}" if one.steps else "-",
        short_names(one.hosts) or "-",
        f"{started:%Y-%m-%d %H:%M}",
        duration(one.seconds),
        one.started_by or "-",
    )


@dataclass(frozen=True)
class LogsRequest:
    """What a run's ranks have printed.

    Attributes:
        run: its id, or how that begins; "": the newest run.
        rank: of one rank only; None: of all.
        follow: whether until the run ends.
    """

    connection: Connection = field(default_factory=Connection)
    run: str = ""
    rank: int | None = None
    follow: bool = False


def logs(request: LogsRequest, show: Callable[[str], None], view: View) -> None:
    """Show what a run's ranks have printed, safe for a terminal.

    Args:
        show: takes whole lines, as they come; the last one may lack its end.

    Raises:
        UsageError: there is no such rank.
        FtclusterError: there is no such run, or its head does not answer.
        Interrupted: the user stopped it.
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
                data = log.read()
                if not incomplete:
                    end = data.rfind(b"\n") + 1
                    log.seek(end - len(data), os.SEEK_CUR)
                    data = data[:end]
                if data:
                    show(printable(data.decode(errors="replace")))

            copy_log(run_hosts, run, file, destination, request.follow, take)
            take(incomplete=True)


def _check_rank(run: str, rank: int, ranks: int) -> None:
    if rank >= ranks:
        known = f": 0 to {ranks - 1}" if ranks else ""
        raise UsageError(f"{run} has no rank {rank}, it has {counted(ranks, 'rank')}{known}")


def fetch(connection: Connection, run: str, folder: str, view: View) -> Result:
    """Copy the model of a run to this machine; the folder is there only once it is whole.

    Args:
        run: its id, or how that begins; "": the newest run.
        folder: a new or empty one; "": the run's id.

    Raises:
        FtclusterError: there is no such run, it has no model, or the folder is not empty.
    """
    run_hosts, name = find(connection, run, view)
    found = find_run(run_hosts, name)
    if not found.model:
        raise FtclusterError(f"run {name} has no model: it is {found.state}")
    path = Path(folder or name)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise FtclusterError(f"{path} is not empty", "name another folder")
    fetch_model(run_hosts, name, found.model, path)
    document = {"state": "done", "run": name, "model": str(path.absolute())}
    return Result(document, (f"model: {path}",))


def stop(connection: Connection, names: Sequence[str], force: bool, view: View) -> Result:
    """End runs on all their hosts; one that cannot be ended keeps no other from it.

    Args:
        names: their ids, or how these begin.
        force: whether to end them at once, with nothing saved.

    Raises:
        FtclusterError: there is no such run, and none was ended; or some may still be running.
    """
    # all of them first: a misspelt one is to stop none
    meant = dict.fromkeys(find(connection, name, view) for name in names)
    ended = _end(list(meant), force)
    documents = [one.to_dict() for _, one in ended]
    lines = tuple(line for run_hosts, one in ended for line in _ended_lines(run_hosts.head, one))
    return Result(documents if len(names) > 1 else documents[0], lines)


def _end(runs: Sequence[tuple[RunHosts, str]], force: bool) -> list[tuple[RunHosts, RunState]]:
    ended, failed = [], []
    for run_hosts, name in runs:
        try:
            follow.stop(run_hosts, name, force=force)
            found = find_run(run_hosts, name)
        except FtclusterError as error:
            failed.append(error)
            continue
        complete_from(found)
        ended.append((run_hosts, found))
    if failed:
        message = "\n  ".join(one.message for one in failed)
        hints = "\n  ".join(dict.fromkeys(one.hint for one in failed if one.hint))
        stopped = [one.run for _, one in ended]
        raise FtclusterError(message, hints, {"stopped": stopped} if stopped else {})
    return ended


def _ended_lines(head: str, found: RunState) -> list[str]:
    said = [f"{found.run}: {found.state}"]
    if found.state == "stopped" and found.checkpoint:
        said.append(f"checkpoint on {head}: {found.checkpoint}")
        said.append(f"continue it: ftcluster train --resume {found.run}")
    return said
