"""Train a recipe with several values of its fields, and report the best combination.

A sweep has no state other than its runs: each run's id contains a digest of its settings and data.
Repeating the command, on any control node, finds the existing runs on the hosts and trains only the
missing combinations.
"""

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ftcluster.errors import ClusterChanged, Detached, FtclusterError, Interrupted, UsageError
from ftcluster.launch import follow, training_run
from ftcluster.launch.hub_token import find_token
from ftcluster.launch.notify import notify_here, read_notify
from ftcluster.launch.record import end_of, read_record
from ftcluster.launch.runs import fetch_model, list_runs
from ftcluster.launch.tags import is_tag
from ftcluster.launch.training_run import TrainingRun
from ftcluster.operations.connection import cluster_of
from ftcluster.operations.runs.report import ReportRequest, report
from ftcluster.operations.search.sweep_request import Part, SweepRequest, name_of, parts_of
from ftcluster.operations.search.sweep_result import SweepResult, notification_of
from ftcluster.operations.train.head_access import ensure_head_access
from ftcluster.progress.view import View
from ftcluster.search.engine import search
from ftcluster.search.rows import DIVERGED, NOT_STARTED, WAITING, SweepRun, aim_of
from ftcluster.search.space import Settings
from ftcluster.text.plural import counted
from ftcluster_common.protocol.run_state import INTERRUPTED, RunState, name_of_run
from ftcluster_common.user_code import declared_metrics

POLL_SECONDS = 10.0  # seconds between two polls of parallel runs
ENDED = ("done", "failed", "stopped", DIVERGED)
GIVE_UP = 3  # number of consecutive failed launches after which hosts get no more runs
LOST: dict[str, Any] = {
    "message": "it is not known how the run ended, because its head does not respond"
}


def dry_run(request: SweepRequest, view: View) -> SweepResult:
    """Return the runs that `sweep` would train, without contacting a host.

    This raises the same errors as `sweep`.
    """
    return replace(_Sweep(request, view, view).result, planned=True)


def sweep(request: SweepRequest, view: View, steps_view: View) -> SweepResult:
    """Train each combination that has not been trained yet, and compare all combinations.

    If a run fails, the other runs continue. `--notify` and `--webhook` get one notification, when
    the sweep is done or has failed.

    Args:
        steps_view: view for the progress of a single run, used if the runs are sequential.

    Raises:
        ClusterChanged: the cluster has changed since the runs were planned. `again`
            retries the operation.
        Interrupted: the user stopped the command; the active runs continue.
        FtclusterError: some combinations are not valid (lists all of them), or no head responds.
    """
    state = _Sweep(request, view, steps_view)
    path = Path(request.fetch)
    if request.fetch and path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise FtclusterError(f"--fetch: {path} is not empty", "choose another folder")
    try:
        state.search()
        result = state.completed()
    except (Interrupted, KeyboardInterrupt) as error:
        active = [row.run for row in state.rows if row.state == "running"]
        running = f"; still running: {', '.join(active)}" if active else ""
        stop = f"; to stop these runs: ftcluster stop {' '.join(active)}" if active else ""
        interrupted = Interrupted(
            f"left the sweep{running}",
            f"the same command continues the sweep{stop}",
            state.result.document(),
        )
        if isinstance(error, Detached):
            interrupted.exit_code = error.exit_code
        raise interrupted from None
    except ClusterChanged:
        raise
    except FtclusterError as error:
        state.notify(state.result, error)
        raise
    state.notify(result)
    return result


class _Sweep:
    """A sweep in progress.

    Attributes:
        rows: one row per run.
    """

    def __init__(self, request: SweepRequest, view: View, steps_view: View) -> None:
        self._request, self._view = request, view
        # read now, because the webhook's file may disappear while the sweep runs
        self._recipients = read_notify(request.launch.notify, request.launch.webhook)
        cluster = cluster_of(request.connection, view)
        self._parts = parts_of(
            cluster, request.hosts, request.nodes, request.connection.to(cluster)
        )
        self._steps_view = steps_view if len(self._parts) == 1 else View()
        self._token = find_token() if request.hub_token else ""
        self._strategy = request.strategy(len(self._parts))
        self.rows: list[SweepRun] = []
        self._contents: dict[str, str] = {}
        prepared, _ = self._add(self._strategy.ask())
        first = prepared[0].recipe
        self._recipe_name = first.name
        user_metrics = declared_metrics(prepared[0].code.metrics)
        self._aim = aim_of(first, request.metric, request.fields, user_metrics)
        # both by the part's index: consecutive failed launches, and the active run
        self._failed: dict[int, int] = {}
        self._running: dict[int, SweepRun] = {}
        shape = f"{counted(prepared[0].plan.world_size, 'rank')} each"
        count = len(self._parts)
        where = f"{count} at once" if count > 1 else "one after the other"
        runs = counted(request.tpe or len(self.rows), "run")
        view.say(f"{runs} of {first.name}, {where}, {shape}")

    def _add(self, settings: Sequence[Settings]) -> tuple[list[TrainingRun], list[SweepRun]]:
        """Add a row for each combination that does not have a row yet.

        Returns:
            The added runs as they would be launched, and a row for each element of `settings`.

        Raises:
            FtclusterError: some runs cannot be launched; lists all reasons.
        """
        by_label = {row.label: row for row in self.rows}
        rows = [by_label.setdefault(row.label, row) for row in map(SweepRun, settings)]
        new = [row for row in by_label.values() if row not in self.rows]
        prepared = self._checked(new)
        for row in new:
            row.name = name_of(self._request, row.settings, self._contents)
        self.rows += new
        return prepared, rows

    def _checked(self, rows: Sequence[SweepRun]) -> list[TrainingRun]:
        """Return each run as it would be launched.

        Raises:
            FtclusterError: some runs cannot be launched; lists all reasons.
        """
        prepared: list[TrainingRun] = []
        problems: dict[str, tuple[FtclusterError, list[str]]] = {}
        for row in rows:
            try:
                request = self._request.with_settings(row.settings, self._request.run_name)
                prepared.append(request.prepared(self._parts[0].cluster))
            except FtclusterError as error:
                problems.setdefault(str(error), (error, []))[1].append(row.label)
        if problems:
            lines = [f"{', '.join(labels)}: {text}" for text, (_, labels) in problems.items()]
            count = sum(len(labels) for _, labels in problems.values())
            wrong = all(isinstance(error, UsageError) for error, _ in problems.values())
            raise (UsageError if wrong else FtclusterError)(
                f"{count} of {counted(len(rows), 'run')} cannot start\n  " + "\n  ".join(lines),
                "no run was started",
            )
        return prepared

    @property
    def result(self) -> SweepResult:
        """The current state of the sweep."""
        return SweepResult(self.rows, self._aim, len(self._parts))

    def notify(self, result: SweepResult, error: FtclusterError | None = None) -> None:
        """Notify the user from this machine, and print a note for each failed notification.

        Args:
            error: the error that ended the sweep; None if it ended by itself.
        """
        document = notification_of(self._recipe_name, result, error)
        for note in notify_here(self._recipients, document):
            self._view.say(note)

    def find(self) -> None:
        """Find the combinations that any user has already trained or is training.

        Raises:
            FtclusterError: a head does not respond.
        """
        rows = [row for row in self.rows if row.state == WAITING]
        beginnings = [f"{row.name}-" for row in rows]
        if not rows:
            return
        existing: dict[str, list[tuple[RunState, Part]]] = {}
        for part in self._parts:
            for state in list_runs(part.run_hosts, beginnings)[0]:
                existing.setdefault(name_of_run(state.run), []).append((state, part))
        for row in rows:
            runs = [run for run in existing.get(row.name, ()) if self._counts(run[0])]
            if runs:
                state, part = max(runs, key=lambda run: (run[0].state == "done", run[0].started))
                self._take(row, state, part)
        if count := sum(row.state != WAITING for row in rows):
            self._view.say(f"already on the hosts: {counted(count, 'run')}")

    def _counts(self, state: RunState) -> bool:
        """Return True if an existing run must not be trained again."""
        if state.state == "running" or state.doing == INTERRUPTED:
            return bool(state.hosts)
        was_launched = bool(state.hosts) and (state.state != "stopped" or bool(state.step))
        return state.state == "done" or (was_launched and not self._request.retry)

    def _take(self, row: SweepRun, state: RunState, part: Part) -> None:
        """Store the head's report of a run in its row."""
        row.run, row.state, row.hosts = state.run, state.state, state.hosts
        row.seconds = state.seconds
        if state.doing == INTERRUPTED and len(self._parts) > 1:
            row.reason = f"the supervisor is gone; to continue the run: ftcluster attach {row.run}"
        elif state.state == "running" or state.doing == INTERRUPTED:
            row.state = "running"
            self._running[self._parts.index(part)] = row
        else:
            self._end(row, part)

    def _end(self, row: SweepRun, part: Part, view: View | None = None) -> None:
        """Store a run's metrics in its row, after following the run unless its end is recorded."""
        end = (read_record(row.run) or {}).get("end", {})
        if "metrics" not in end:
            progress = follow.attach(part.run_hosts, row.run, view or View()).progress
            end = end_of(progress)
            if not progress.ended:
                end = {**end, "state": "failed", "errors": end["errors"] or [LOST]}
        row.end(end)
        name, value = self._aim.of(row.metrics)
        metric = f"{name} {value:.4g}" if value is not None else row.reason or "no metric"
        self._view.say(f"{row.label}: {row.state}, {metric}  ({row.run})")

    def run(self) -> None:
        """Train all waiting combinations. Each part trains its runs sequentially."""
        while True:
            waiting = [row for row in self.rows if row.state == WAITING]
            usable = [n for n in range(len(self._parts)) if self._failed.get(n, 0) < GIVE_UP]
            for number in usable:
                if number not in self._running and waiting:
                    self._launch(waiting.pop(0), number)
            if not self._running and not (waiting and usable):
                return
            if len(self._parts) == 1:
                for number, row in list(self._running.items()):
                    self._end(row, self._parts[number], self._steps_view)
                    del self._running[number]
            elif self._running:
                self._poll()

    def search(self) -> None:
        """Train the settings that the strategy chooses, until the strategy is finished."""
        search(self._strategy, self._try_all)

    def _try_all(self, settings: Sequence[Settings]) -> list[float | None] | None:
        """Train these combinations, except combinations that have been trained already.

        Returns:
            The cost of each combination, with None for a run without a metric; or None instead of
            the list if any run has not ended.
        """
        _, rows = self._add(settings)
        self.find()
        self.run()
        if any(row.state not in ENDED for row in rows):
            return None
        return [self._cost(row) for row in rows]

    def _cost(self, row: SweepRun) -> float | None:
        name, value = self._aim.of(row.metrics)
        if value is None or row.state != "done":
            return None
        return -value if self._aim.more_is_better(name) else value

    def _launch(self, row: SweepRun, number: int) -> None:
        """Start a run on the part with the index `number`. Store a failure's reason in the row."""
        part = self._parts[number]
        request = self._request.with_settings(row.settings, row.name)
        launch = self._request.launch
        tags = filter(is_tag, row.label.split())  # `ftcluster ps` shows tags
        launch = replace(launch, tags=(*tags, *launch.tags), notify="", webhook="")
        run = launch.applied_to(request.prepared(part.cluster))
        if name_of(self._request, row.settings, {}) != row.name:
            raise FtclusterError(
                "the model, the data or the recipe's file has changed since the sweep began",
                "repeat the command to train the combinations that are missing now",
            )
        row.run, row.hosts = run.id, tuple(host.name for host in run.plan.hosts)
        self._view.say(f"{row.label}: {run.id} on {', '.join(row.hosts)}")
        try:
            if not self._failed.get(number):
                ensure_head_access(run, part.options, self._steps_view)
            launched = replace(run, hub_token=self._token)
            training_run.train(launched, self._steps_view, part.options, detach=True)
        except (ClusterChanged, Interrupted):
            row.state = WAITING
            raise
        except FtclusterError as error:
            row.state, row.reason = NOT_STARTED, " ".join(error.message.split())
            self._failed[number] = self._failed.get(number, 0) + 1
            self._view.say(f"{row.label}: not started: {error}")
            return
        self._failed[number] = 0
        row.state = "running"
        self._running[number] = row

    def _poll(self) -> None:
        """Wait POLL_SECONDS, then store the results of the runs that have ended."""
        time.sleep(POLL_SECONDS)
        for number, row in list(self._running.items()):
            part = self._parts[number]
            try:
                runs = list_runs(part.run_hosts, [row.run], 1)[0]
            except Interrupted:
                raise
            except FtclusterError as error:
                self._view.say(f"{error.message}; run {row.run} continues there; trying again ...")
                continue
            state = next((run for run in runs if run.run == row.run), None)
            if state is None or state.state != "running":
                del self._running[number]
                if state is None:
                    row.state, row.reason = "failed", "the run no longer exists on its head"
                else:
                    self._take(row, state, part)

    def completed(self) -> SweepResult:
        """Fetch the best model and write the report, if requested. Return the final result.

        Raises:
            FtclusterError: the folder is not empty, or the head does not respond.
        """
        request, result = self._request, self.result
        best = result.best
        if request.fetch and best:
            path = Path(request.fetch)
            part = next(p for p in self._parts if p.run_hosts.head == best.hosts[0])
            fetch_model(part.run_hosts, best.run, best.model, path)
            result = replace(result, fetched=str(path.absolute()))
        done = tuple(row.run for row in result.ranked)
        if request.report and done:
            report(ReportRequest(request.connection, done, request.report), self._view)
            result = replace(result, report=str(request.report.absolute()))
        return result
