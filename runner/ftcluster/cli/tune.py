"""`ftcluster tune [RECIPE] [key=value ...]`: finds the fastest launch of a training."""

import argparse
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from rich.console import Console

from ftcluster.ansible.options import CONNECTION, add_options, ask_passwords
from ftcluster.benchmark import tuning
from ftcluster.benchmark.scaling import measure
from ftcluster.benchmark.tuning import RANKS, Measured, Search, Settings, candidates, decide
from ftcluster.cli.arguments import add_output, add_sharing, at_least, print_result
from ftcluster.cli.bench_scaling import short_run
from ftcluster.cli.recipe_words import on_the_hosts, split_words, training_recipe
from ftcluster.cli.run_options import add_cluster, cluster_of, reach_of
from ftcluster.cli.train import as_tuned, prepare_run
from ftcluster.cluster.record import with_tuning, without_tunings
from ftcluster.cluster.saved import Cluster
from ftcluster.cluster.tunings import Tuning, hosts_of, recipe_of
from ftcluster.errors import FtclusterError, Interrupted
from ftcluster.launch.place import place_of
from ftcluster.launch.runs import clean_runs
from ftcluster.launch.training_run import TrainingRun, train
from ftcluster.planning.backends import stack_of
from ftcluster.planning.plan import first_hosts
from ftcluster.planning.tuned import written
from ftcluster.progress.format import duration
from ftcluster.progress.view import View, make_view
from ftcluster.provision.shared import change_record
from ftcluster.stacks.catalog import load_stacks

BUDGET = "10m"
UNITS = {"": 1, "s": 1, "m": 60, "h": 3600}


def add_parser(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "tune",
        help="find the fastest launch of a training on this cluster",
        description="Trains some steps of a recipe with other ranks per host, cores for "
        "communication, backends, bucket sizes and allocators than the plan's, and compares the "
        "samples per second. If something is faster than the plan's default by more than repeated "
        "trials differ, plan and train use it for this recipe on these hosts from then on.",
        usage="ftcluster tune [RECIPE] [key=value ...] [options]",
    )
    parser.add_argument(
        "words", nargs="*", metavar="RECIPE or key=value", help="as in train (default: quickstart)"
    )
    parser.add_argument("--data", metavar="PATH", help="as in train")
    parser.add_argument("--model", metavar="DIR", help="as in train")
    parser.add_argument("--nodes", type=at_least(1), metavar="N", help="as in train")
    parser.add_argument(
        "--ranks-per-host",
        type=at_least(1),
        metavar="N",
        help="try no other number of ranks",
    )
    parser.add_argument(
        "--budget",
        type=seconds,
        default=seconds(BUDGET),
        metavar="TIME",
        help=f"how long it may take, such as 90s, 10m or 1h (default: {BUDGET})",
    )
    parser.add_argument(
        "--batch",
        action="store_true",
        help="also try 2 and 4 times the batch_size, which give another model: the learning rate "
        "is left as it is",
    )
    parser.add_argument(
        "--seed",
        type=at_least(0),
        default=0,
        metavar="N",
        help="of the last round's order (0)",
    )
    either = parser.add_mutually_exclusive_group()
    either.add_argument("--dry-run", action="store_true", help="only list what would be tried")
    either.add_argument(
        "--forget", action="store_true", help="forget what was found for this recipe on any hosts"
    )
    add_sharing(parser)
    add_cluster(parser)
    add_output(parser, verbose="print the steps of the trials, too")
    add_options(parser, ("--extra-vars", *CONNECTION))
    parser.set_defaults(run=run, takes_recipe=True)


def seconds(text: str) -> float:
    """A time such as 90s, 10m or 1h, in seconds.

    >>> seconds("90"), seconds("10m"), seconds("1.5h")
    (90.0, 600.0, 5400.0)
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text)
    if not found or not float(found[1]):
        raise argparse.ArgumentTypeError(f"'{text}' is not a time: write 90s, 10m or 1h")
    return float(found[1]) * UNITS[found[2]]


def run(options: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    split_words(options.words)  # wrong usage first
    with ask_passwords(vars(options)) as passwords:
        cluster = cluster_of(options, passwords)
        reach = (*cluster.options, *reach_of(options, passwords))
        trials = Trials(options, cluster, reach)
        if options.forget:
            return forget(options, trials)
        if options.dry_run:
            return show(options, trials)
        return tune(options, trials)


def forget(options: argparse.Namespace, trials: "Trials") -> int:
    """Forget what was found; returns the exit code."""
    about = recipe_of(trials.recipe)
    tunings = tuple(one for one in trials.cluster.tunings if one.recipe == about)
    if tunings:
        trials.keep(without_tunings(tunings))
    gone = [one.date for one in tunings]
    text = f"forgotten: what was found on {', '.join(gone)}" if gone else "nothing was known"
    print_result(options, {"state": "done", "forgotten": gone}, text)
    return 0


def show(options: argparse.Namespace, trials: "Trials") -> int:
    """Print what would be tried first; returns the exit code."""
    pool = trials.candidates()
    found = {"state": "planned", "recipe": trials.recipe.name, "trials": [dict(s) for s in pool]}
    first = "first the plan's default and, repeating it between them, each of these alone:"
    lines = [first, *(f"  {written(one)}" for one in pool)] if pool else ["nothing can be tried"]
    lines += ["then what was faster: together, and in longer trials", *trials.fixed()]
    print_result(options, found, "\n".join(lines))
    return 0


class Trials:
    """The trainings of the search.

    Attributes:
        recipe: as tunings know it.
        ids: of the runs, which are removed at the end.
    """

    def __init__(self, options: argparse.Namespace, cluster: Cluster, reach: Sequence[str]) -> None:
        self._options, self._reach = options, tuple(reach)
        self.cluster = cluster
        self.hosts = first_hosts(cluster.usable, options.nodes)
        recipe = training_recipe(options.words, options.data, options.model)
        recipe, _ = on_the_hosts(recipe, self.hosts)
        self.recipe = as_tuned(recipe, options.ranks_per_host)
        self.view = View(Console(file=sys.stderr, highlight=False))
        self.ids: list[str] = []

    def prepared(self, settings: Settings, steps: int | None = None) -> TrainingRun:
        """A run with these settings, of so many steps; left out, of all."""
        options = self._options
        words = [*options.words, *written(settings).split()]
        if steps is not None:
            if self.recipe.training.sync == "local":
                steps = max(steps, 3 * self.recipe.training.sync_steps)
            words += short_run(steps)
        ranks = None if RANKS in settings else options.ranks_per_host
        found = prepare_run(
            words, self.cluster, options.data, options.model, options.nodes, 0, ranks,
            use_tuning=False,
        )  # fmt: skip
        sharing = {"wait": options.wait, "share_hosts": options.share_hosts}
        return replace(found, launch=replace(found.launch, **sharing))

    def candidates(self, beside: Settings = tuning.DEFAULT) -> list[Settings]:
        """What may be faster than the plan's default, or than these settings."""
        plan = self.prepared(beside).plan
        backends = stack_of(self.hosts, load_stacks()).backends
        found = candidates(self.recipe, self.hosts.hosts, plan, backends, self._options.batch)
        return [{**beside, **one} for one in found if not (set(one) & set(beside))]

    def further(self, settings: Settings) -> list[Settings]:
        """What only several ranks can have, beside a number of them, where the plan has one."""
        if set(settings) != {RANKS} or self.prepared(tuning.DEFAULT).plan.world_size > 1:
            return []
        known = {name for one in self.candidates() for name in one}
        return [one for one in self.candidates(settings) if not set(one) - {RANKS} <= known]

    def fixed(self) -> list[str]:
        """Lines about what is not tried, because it is set."""
        recipe, training = self.recipe, self.recipe.training
        fields = {
            "ranks_per_host": (recipe.ranks_per_host, None),
            "communication_cores": (recipe.communication_cores, None),
            "allocator": (recipe.allocator, "auto"),
            "training.ddp_backend": (training.ddp_backend, "auto"),
            "training.ddp_bucket_cap_mb": (training.ddp_bucket_cap_mb, None),
            "training.shard_optimizer": (training.shard_optimizer, "auto"),
        }
        return [
            f"not tried, because it is set: {written({name: value})}"
            for name, (value, default) in fields.items()
            if value != default
        ]

    def measure(self, settings: Settings, steps: int) -> Measured:
        """Train so many steps.

        Raises:
            FtclusterError, Interrupted: see `train`.
        """
        began = time.monotonic()
        one = self.prepared(settings, steps)
        self.ids.append(one.id)
        events: list[dict[str, Any]] = []
        view = make_view(True) if self._options.verbose else self.view
        train(one, view, self._reach, on_event=events.append, may_detach=False)
        found = measure([event for event in events if event["event"] == "communication"])
        each = found["seconds"]
        return Measured(one.recipe.batch_size / each, each, time.monotonic() - began)

    def keep(self, changes: dict[str, Any]) -> None:
        """Change the cluster's record.

        Raises:
            FtclusterError: the head does not answer, or refuses it.
        """
        change_record(self.cluster, changes, self._reach, make_view(self._options.verbose))

    def clean(self) -> None:
        """Remove the runs from the hosts."""
        clean_runs(replace(place_of(self.cluster), options=self._reach), tuple(self.ids))


def tune(options: argparse.Namespace, trials: Trials) -> int:
    """Search, save what was found and print it; returns the exit code.

    Raises:
        Interrupted: the user stopped it; what was decided by then is saved.
    """
    began = time.monotonic()
    pool = trials.candidates()
    for line in trials.fixed():
        trials.view.say(line)
    trials.view.say(f"up to {duration(options.budget)}; Ctrl-C keeps what is known by then")
    search = Search(
        trials.measure,
        lambda: options.budget - (time.monotonic() - began),
        trials.view.say,
        trials.further,
        options.seed,
    )
    state = "done"
    try:
        search.run(pool)
    except (Interrupted, KeyboardInterrupt):
        state = "stopped"
    verdict = decide(search.trials)
    stack = trials.hosts.head.stack
    spent = time.monotonic() - began
    found = tuning.document(trials.recipe.name, stack, search, verdict, spent, state)
    text = list(tuning.lines(found))
    if verdict.speed_up is not None and verdict.spread is not None:
        best = Tuning(
            trials.recipe.name, recipe_of(trials.recipe), hosts_of(trials.hosts.hosts),
            f"{datetime.now(UTC):%Y-%m-%d}", verdict.settings, round(verdict.speed_up, 4),
            round(verdict.spread, 4), len(search.trials),
        )  # fmt: skip
        try:
            trials.keep(with_tuning(best))
            text += ["saved: ftcluster plan and train use it; ftcluster tune --forget forgets it"]
        except FtclusterError as error:  # what was measured is worth showing all the same
            text += [f"not saved: {error}"]
    if state == "done":
        trials.clean()
        print_result(options, found, "\n".join(text))
        return 0
    if not options.json:
        print_result(options, found, "\n".join(text))
    raise Interrupted("stopped; its runs: ftcluster ps", details=found)
