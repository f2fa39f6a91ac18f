"""Find the settings with which a training run is fastest on a cluster."""

import time
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

from ftcluster.benchmark.scaling import measure
from ftcluster.cluster.chosen_hosts import with_hosts
from ftcluster.cluster.record import with_tuning, without_tunings
from ftcluster.cluster.tunings import Tuning, hosts_of, recipe_of
from ftcluster.errors import FtclusterError, Interrupted
from ftcluster.launch import training_run
from ftcluster.launch.run_hosts import run_hosts_of
from ftcluster.launch.runs import clean_runs
from ftcluster.launch.training_run import TrainingRun
from ftcluster.operations.benchmark.bench_scaling import short_run
from ftcluster.operations.connection import cluster_of
from ftcluster.operations.result import Result
from ftcluster.operations.search.tune_result import document as tune_document
from ftcluster.operations.search.tune_result import lines as tune_lines
from ftcluster.operations.train.head_access import ensure_head_access
from ftcluster.operations.train.prepare import LaunchOptions, RecipeRequest, as_tuned
from ftcluster.operations.train.recipe_words import on_the_hosts, training_recipe
from ftcluster.planning.backends import stack_of
from ftcluster.planning.plan import first_hosts
from ftcluster.planning.tuned import written
from ftcluster.progress.format import duration
from ftcluster.progress.view import View
from ftcluster.provision.shared import change_record
from ftcluster.search.candidates import RANKS, candidates
from ftcluster.search.engine import search
from ftcluster.search.turns import DEFAULT, Settings, TrialSpeed, Turns, attempted, decide
from ftcluster.stacks.catalog import load_stacks

BUDGET_SECONDS = 600.0


@dataclass(frozen=True)
class TuneRequest(RecipeRequest):
    """A training run whose settings are tuned.

    Attributes:
        budget_seconds: time limit of the search in seconds.
        batch: True if larger batch sizes are tried too; a larger batch changes the trained model.
        seed: seed for the order of the trials in the last round.
    """

    budget_seconds: float = BUDGET_SECONDS
    batch: bool = False
    seed: int = 0
    launch: LaunchOptions = field(default_factory=LaunchOptions)


@dataclass(frozen=True)
class TuneResult(Result):
    """The result of the search.

    Attributes:
        stopped: True if the user stopped the search; the results up to then are saved.
    """

    stopped: bool = False


def forget(request: TuneRequest, view: View) -> Result:
    """Delete the saved tunings of a recipe, for all hosts.

    Raises:
        FtclusterError: the request is not valid, or the head does not respond.
    """
    trials = _Trials(request, view, view)
    about = recipe_of(trials.recipe)
    tunings = tuple(tuning for tuning in trials.cluster.tunings if tuning.recipe == about)
    if tunings:
        trials.keep(without_tunings(tunings))
    gone = [tuning.date for tuning in tunings]
    text = f"deleted: the results of {', '.join(gone)}" if gone else "there were no saved results"
    return Result({"state": "done", "forgotten": gone}, (text,))


def dry_run(request: TuneRequest, view: View) -> Result:
    """Return the settings that would be tried first.

    Raises:
        FtclusterError: the request is not valid.
    """
    trials = _Trials(request, view, view)
    pool = trials.candidates()
    document = {"state": "planned", "recipe": trials.recipe.name, "trials": [dict(s) for s in pool]}
    first = "tried first: each of these settings alone, with trials of the plan's default between:"
    tried = [first, *(f"  {written(settings)}" for settings in pool)]
    lines = tried if pool else ["there are no settings to try"]
    lines += ["tried then: the faster settings combined, in longer trials", *trials.fixed()]
    return Result(document, tuple(lines))


def tune(request: TuneRequest, view: View, steps_view: View) -> TuneResult:
    """Train a few steps with each candidate, and save settings that are faster than the plan's.

    The settings are saved on the head.

    Args:
        steps_view: view for the progress of each trial.

    Raises:
        ClusterChanged: the cluster has changed since the trials were planned. `again`
            retries the operation.
        FtclusterError: the request is not valid, or the plan's default failed twice.
    """
    trials = _Trials(request, view, steps_view)
    began = time.monotonic()
    pool = trials.candidates()
    for line in trials.fixed():
        trials.view.say(line)
    limit = duration(request.budget_seconds)
    trials.view.say(f"the search takes up to {limit}; Ctrl-C keeps the results so far")
    turns = Turns(
        pool,
        lambda: request.budget_seconds - (time.monotonic() - began),
        trials.view.say,
        request.seed,
    )
    state = "done"
    try:
        search(turns, partial(attempted, trials.measure))
    except (Interrupted, KeyboardInterrupt):
        state = "stopped"
    verdict = decide(turns.trials)
    stack = trials.hosts.head.stack
    spent = time.monotonic() - began
    document = tune_document(trials.recipe.name, stack, turns, verdict, spent, state)
    text = list(tune_lines(document))
    if verdict.speed_up is not None and verdict.spread is not None:
        best = Tuning(
            trials.recipe.name, recipe_of(trials.recipe), hosts_of(trials.hosts.hosts),
            f"{datetime.now(UTC):%Y-%m-%d}", verdict.settings, round(verdict.speed_up, 4),
            round(verdict.spread, 4), len(turns.trials),
        )  # fmt: skip
        try:
            trials.keep(with_tuning(best))
            text += [
                "saved for ftcluster plan and train; to delete the result: ftcluster tune --forget"
            ]
        except FtclusterError as error:  # the result is still worth showing
            text += [f"not saved: {error}"]
    if state == "done":
        trials.clean()
    return TuneResult(document, tuple(text), state == "stopped")


class _Trials:
    """The training runs of a search.

    Attributes:
        recipe: the recipe as tunings store it, with the requested number of ranks per host.
        ids: ids of the trials' runs, which `clean` removes.
    """

    def __init__(self, request: TuneRequest, view: View, steps_view: View) -> None:
        self._request, self._steps_view = request, steps_view
        self._whole = cluster_of(request.connection, view)  # its head stores the record
        self.cluster = with_hosts(self._whole, request.hosts)
        self._connection_options = request.connection.to(self.cluster)
        self.hosts = first_hosts(self.cluster.usable, request.nodes, self.cluster.absent)
        code = request.user_code()
        requested = training_recipe(request.words, request.data, request.model, code=code)
        placed, _ = on_the_hosts(requested, self.hosts)
        self.recipe = as_tuned(placed, request.ranks_per_host)
        self.view = view
        self.ids: list[str] = []

    def prepared(self, settings: Settings, steps: int | None = None) -> TrainingRun:
        """Return a run with these settings.

        Args:
            steps: number of steps to train; None for all steps of the recipe.
        """
        chosen = written(settings).split()
        if steps is not None:
            if self.recipe.training.sync == "local":
                steps = max(steps, 3 * self.recipe.training.sync_steps)
            chosen += short_run(steps)
        ranks = None if RANKS in settings else self._request.ranks_per_host
        request = replace(self._request, chosen=tuple(chosen), ranks_per_host=ranks, spares=0)
        run = request.prepared(self._whole, use_tuning=False)
        return self._request.launch.applied_to(run)

    def candidates(self) -> list[Settings]:
        """Return settings that may be faster than the plan's default."""
        plan = self.prepared(DEFAULT).plan
        backends = stack_of(self.hosts, load_stacks()).backends
        hosts = self.hosts.hosts
        return list(candidates(self.recipe, hosts, plan, backends, self._request.batch))

    def fixed(self) -> list[str]:
        """Return a line for each setting that is not tried because the recipe sets it."""
        recipe, training = self.recipe, self.recipe.training
        fields = {
            "ranks_per_host": (recipe.ranks_per_host, None),
            "communication_cores": (recipe.communication_cores, None),
            "allocator": (recipe.allocator, "auto"),
            "training.ddp_backend": (training.ddp_backend, "auto"),
        }
        return [
            f"not tried, because it is set: {written({name: value})}"
            for name, (value, default) in fields.items()
            if value != default
        ]

    def measure(self, settings: Settings, steps: int) -> TrialSpeed:
        """Train `steps` steps and return the measured speed.

        Raises:
            FtclusterError: the trial failed, see `training_run.train`.
            Interrupted: the trial was stopped.
        """
        began = time.monotonic()
        run = self.prepared(settings, steps)
        if not self.ids:
            ensure_head_access(run, self._connection_options, self._steps_view)
        self.ids.append(run.id)
        events: list[dict[str, Any]] = []
        training_run.train(
            run,
            self._steps_view,
            self._connection_options,
            on_event=events.append,
            may_detach=False,
        )
        measured = measure([event for event in events if event["event"] == "communication"])
        each = measured["seconds"]
        return TrialSpeed(run.recipe.batch_size / each, each, time.monotonic() - began)

    def keep(self, changes: dict[str, Any]) -> None:
        """Change the cluster's record.

        Raises:
            FtclusterError: the head does not respond, or refuses the change.
        """
        change_record(self._whole, changes, self._connection_options, self.view)

    def clean(self) -> None:
        """Remove the trials' runs from the hosts."""
        clean_runs(
            replace(run_hosts_of(self.cluster), options=self._connection_options), tuple(self.ids)
        )
