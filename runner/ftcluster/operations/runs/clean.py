"""Remove the files of ended runs from the hosts."""

import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ftcluster.errors import FtclusterError, UsageError
from ftcluster.launch.follow import this_user
from ftcluster.launch.record import record_dir, recorded_runs
from ftcluster.launch.run_hosts import RunHosts
from ftcluster.launch.runs import clean_runs
from ftcluster.operations.connection import Connection, all_runs, cluster_run_hosts
from ftcluster.operations.result import Result
from ftcluster.progress.format import duration
from ftcluster.progress.view import View
from ftcluster.text.table import aligned
from ftcluster_common.protocol.run_state import RunState

COLUMNS = ("run", "state", "ended", "by")


@dataclass(frozen=True)
class CleanRequest:
    """The runs to remove: named runs, or by default the user's own failed and stopped runs.

    Attributes:
        runs: ids of the runs to remove; if not empty, the other fields are not allowed.
        done: True if runs that have succeeded are removed too.
        resumable: True if runs that can be resumed are removed too.
        all: True if the runs of other users are removed too.
        older_than: minimum number of seconds since the end of a run to remove; 0 for any run.
    """

    connection: Connection = field(default_factory=Connection)
    runs: tuple[str, ...] = ()
    done: bool = False
    resumable: bool = False
    all: bool = False
    older_than: float = 0

    def __post_init__(self) -> None:
        """Check that `runs` is not combined with other fields.

        Raises:
            UsageError: `runs` is combined with other fields.
        """
        if self.runs and (self.done or self.resumable or self.all or self.older_than):
            raise UsageError(
                "either name runs, or select them with --done, --resumable, --all, --older-than"
            )


@dataclass(frozen=True)
class Selection:
    """Runs that may be removed.

    Attributes:
        run_hosts: the hosts of the runs.
        runs: ids of the runs.
        unnamed: states of the selected runs that the user has not named.
    """

    run_hosts: RunHosts
    runs: tuple[str, ...]
    unnamed: tuple[RunState, ...] = ()

    def table(self) -> list[str]:
        """Return headings, and a line for each selected run that the user has not named."""
        rows = [(run.run, run.state, _ended(run), run.started_by or "-") for run in self.unnamed]
        return aligned([COLUMNS, *rows])

    def result(self) -> Result:
        """Return the result: the runs that were removed or would be removed."""
        document = {"state": "done", "removed": list(self.runs)}
        return Result(document, self.runs or ("nothing to remove",))


def select(request: CleanRequest, view: View) -> Selection:
    """Return the runs that the request selects.

    Raises:
        FtclusterError: the head does not respond, or a named run does not exist or is running.
    """
    run_hosts = cluster_run_hosts(request.connection, view)
    runs = {run.run: run for run in all_runs(run_hosts, view, request.runs)[0]}
    if request.runs:
        _check(request.runs, runs, run_hosts.head)
        return Selection(run_hosts, request.runs)
    here = set(recorded_runs())
    chosen = tuple(run for run in runs.values() if _is_selected(run, request, run.run in here))
    return Selection(run_hosts, tuple(run.run for run in chosen), chosen)


def remove(selection: Selection) -> Selection:
    """Remove runs from all hosts, remove their records here, and return the removed runs.

    Raises:
        FtclusterError: a host does not respond.
    """

    def forget(run: str) -> None:
        shutil.rmtree(record_dir(run), ignore_errors=True)

    removed = clean_runs(selection.run_hosts, selection.runs, forget)
    return Selection(selection.run_hosts, tuple(removed))


def _is_selected(run: RunState, request: CleanRequest, recorded: bool) -> bool:
    states = ("failed", "stopped", *(("done",) if request.done else ()))
    is_own = recorded or run.started_by == this_user()
    # the run has trained and ended early, so `train --resume` may continue it
    resumable = run.state in ("failed", "stopped") and (run.step or run.checkpoint)
    return (
        run.state in states
        and (request.all or is_own)
        and (request.resumable or not resumable)
        and _seconds_since_end(run) >= request.older_than
    )


def _seconds_since_end(run: RunState) -> float:
    """Return the seconds since a run ended; 0 if the head's clock is ahead of this machine's."""
    return max(0.0, time.time() - run.started - run.seconds)


def _ended(run: RunState) -> str:
    return f"{duration(_seconds_since_end(run))} ago"


def _check(names: Sequence[str], runs: Mapping[str, RunState], head: str) -> None:
    problems = [f"there is no run '{name}' on {head}" for name in names if name not in runs]
    problems += [
        f"{name} is running" for name in names if name in runs and runs[name].state == "running"
    ]
    if problems:
        raise FtclusterError(
            "\n  ".join(problems), "nothing was removed; to list all runs: ftcluster ps"
        )
