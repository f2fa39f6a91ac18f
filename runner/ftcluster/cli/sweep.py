"""`ftcluster sweep RECIPE key=a,b,c ...`: trains with several values and compares the runs."""

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from ftcluster.cli.ansible_options import add_options
from ftcluster.cli.arguments import add_dry_run, add_name, add_output, at_least, not_empty
from ftcluster.cli.connection import add_cluster, connected
from ftcluster.cli.launch_arguments import (
    add_hosts,
    add_hub_token,
    add_restarts,
    add_sharing,
    add_sweep_notify,
    launch_options,
)
from ftcluster.cli.output import print_result
from ftcluster.cli.recipe import add_recipe, recipe_of
from ftcluster.operations.connection import CONNECTION
from ftcluster.operations.search.sweep import dry_run, sweep
from ftcluster.operations.search.sweep_request import SweepRequest
from ftcluster.progress.view import TerminalView, make_view


def add_parser(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "sweep",
        help="train with several values of a recipe's fields, and compare",
        description="Trains a recipe once for each combination of the listed values, in sequence "
        "or in parallel (--nodes), and compares the metric of the runs. The same command resumes "
        "an interrupted sweep: it trains only missing combinations.",
        usage="ftcluster sweep [RECIPE] key=a,b,c [key=value ...] [options]",
    )
    add_recipe(parser)
    group = parser.add_argument_group("combinations")
    group.add_argument(
        "--random",
        type=at_least(1),
        default=0,
        metavar="N",
        help="try N random combinations instead of all; a field may then be a range: "
        "learning_rate=1e-5..1e-4",
    )
    group.add_argument(
        "--tpe",
        type=at_least(1),
        default=0,
        metavar="N",
        help="try N combinations that Optuna's sampler TPE chooses from earlier results; "
        "needs the extra ftcluster[search]",
    )
    group.add_argument(
        "--seed",
        type=at_least(0),
        default=0,
        metavar="N",
        help="seed of random choices (default: 0)",
    )
    group.add_argument(
        "--metric",
        type=not_empty,
        metavar="NAME",
        help="metric to compare (default: metric_for_best_model, or else the loss)",
    )
    group.add_argument(
        "--retry", action="store_true", help="repeat runs that failed or were stopped"
    )
    group = parser.add_argument_group("hosts and ranks")
    add_hosts(group)
    group.add_argument(
        "--nodes",
        type=at_least(1),
        metavar="N",
        help="use N hosts per run, with as many runs in parallel as the hosts allow",
    )
    group.add_argument("--ranks-per-host", type=at_least(1), metavar="N", help="as in train")
    group = parser.add_argument_group("the result")
    group.add_argument(
        "--fetch",
        type=not_empty,
        metavar="DIR",
        help="copy the best model to this new or empty folder",
    )
    group.add_argument(
        "--report",
        type=Path,
        metavar="FILE",
        help="write an HTML page with pictures about the runs",
    )
    add_hub_token(parser)
    add_name(parser)
    add_cluster(parser)
    add_restarts(parser, default=3)
    add_sharing(parser)
    add_sweep_notify(parser)
    add_dry_run(parser, "only check all runs and list them")
    add_output(parser, verbose="print plain lines instead of the live view of each run")
    add_options(parser, ("--extra-vars", *CONNECTION))
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the command and return the exit code: 1 if no run has the metric."""
    names = ("random", "tpe", "seed", "metric", "retry", "fetch", "report")
    request = SweepRequest(
        **recipe_of(options),
        **{name: value for name in names if (value := getattr(options, name)) is not None},
        hub_token=options.hf_token,
        launch=launch_options(options),
    )
    view = TerminalView(Console(file=sys.stderr, highlight=False))
    with connected(options) as connection:
        request = replace(request, connection=connection)
        if options.dry_run:
            print_result(options, dry_run(request, view))
            return 0
        result = sweep(request, view, make_view(options.verbose))
    print_result(options, result)
    return 0 if result.state == "done" else 1
