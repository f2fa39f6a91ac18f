"""`ftcluster evaluate [RECIPE] --model DIR`: the metrics of a trained model."""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ftcluster.ansible.options import ask_passwords
from ftcluster.cli.arguments import (
    add_launch,
    launch_options,
    not_empty,
    print_detached,
    print_result,
)
from ftcluster.cli.recipe_words import DEFAULT_RECIPE, split_words
from ftcluster.cli.run_options import cluster_of, reach_of
from ftcluster.cli.train import add_running, prepare_run, say_notes, show_plan
from ftcluster.errors import UsageError
from ftcluster.launch.hub_token import find_token
from ftcluster.launch.training_run import TrainingRun, train
from ftcluster.progress.format import duration, metrics
from ftcluster.progress.state import RunProgress
from ftcluster.progress.view import make_view
from ftcluster.text.plural import counted
from ftcluster_common.job import EVALUATE, Purpose
from ftcluster_common.recipe import PreferenceTuning


def add_parser(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "evaluate",
        help="measure a trained model",
        description="Measures a trained model on the recipe's validation sets, or on all rows of "
        "--data FILE, over all hosts of the cluster that was set up last. It trains nothing.",
        usage="ftcluster evaluate [RECIPE] --model DIR [key=value ...] [options]",
    )
    add_use(parser)
    parser.set_defaults(run=run)


def add_use(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the commands that use a trained model."""
    parser.add_argument(
        "words",
        nargs="*",
        metavar="RECIPE or key=value",
        help="the recipe that it was trained with (default: what the model's folder says, or else "
        f"{DEFAULT_RECIPE}), and its fields",
    )
    parser.add_argument(
        "--model",
        type=not_empty,
        metavar="DIR",
        required=True,
        help="the trained model (ftcluster fetch), or a Hub name",
    )
    parser.add_argument(
        "--data", type=not_empty, metavar="PATH", help="a file, a folder or a Hub name"
    )
    add_launch(parser)
    add_running(parser)
    parser.set_defaults(takes_recipe=True)


def run(options: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    split_words(options.words)  # before anything that takes time
    with ask_passwords(vars(options)) as passwords:
        prepared, reach = prepare(options, EVALUATE, passwords)
        if isinstance(prepared.recipe.options, PreferenceTuning):
            raise UsageError(
                "what a model prefers is measured against the one that its training began with",
                "the training's own evaluations have it; the loss on answers: ftcluster evaluate "
                f"sft --model {options.model}",
            )
        if options.dry_run:
            show_plan(prepared, options)
            return 0
        view = make_view(options.verbose)
        say_notes(prepared, view)
        progress = train(prepared, view, reach)
    if progress.state == "running":  # detached from
        print_detached(options, progress.run)
        return 0
    text = f"{metrics(progress.result['metrics'])}\n{speed(progress, prepared)}"
    print_result(options, document(progress, options.model), text)
    return 0


def prepare(
    options: argparse.Namespace, purpose: Purpose, passwords: Sequence[str]
) -> tuple[TrainingRun, tuple[str, ...]]:
    """The run that the command line asks for, and how its hosts are reached.

    Raises:
        FtclusterError: see `prepare_run`.
    """
    cluster = cluster_of(options, passwords)
    reach = (*cluster.options, *reach_of(options, passwords))
    shape = (options.nodes, options.spares, options.ranks_per_host)
    run = prepare_run(options.words, cluster, options.data, options.model, *shape, purpose)
    launch = replace(run.launch, **launch_options(options))
    token = find_token() if options.hf_token else ""
    return replace(run, launch=launch, hub_token=token), reach


def document(progress: RunProgress, model: str) -> dict[str, Any]:
    """The result for `--json`."""
    result = progress.result
    names = ("metrics", "samples_per_second", "world_size")
    known = {"run": progress.run, "state": progress.state, "model": model}
    return {**known, **{name: result[name] for name in names}, "seconds": progress.seconds}


def speed(progress: RunProgress, run: TrainingRun) -> str:
    """The speed of a run in one line."""
    result, hosts = progress.result, len(run.plan.hosts)
    where = f" on {hosts} hosts" if hosts > 1 else ""
    return (
        f"{result['samples_per_second']:.1f} samples per second on "
        f"{counted(result['world_size'], 'rank')}{where}, {duration(progress.seconds)} in all"
    )
