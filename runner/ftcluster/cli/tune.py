"""`ftcluster tune [RECIPE] [key=value ...]`: finds the fastest launch settings for a recipe."""

import argparse
import re
import sys
from dataclasses import replace
from typing import Any

from rich.console import Console

from ftcluster.cli.ansible_options import add_options
from ftcluster.cli.arguments import add_output, at_least
from ftcluster.cli.connection import add_cluster, connected
from ftcluster.cli.launch_arguments import add_hosts, add_sharing, launch_options
from ftcluster.cli.output import print_result
from ftcluster.cli.recipe import add_code, add_data, recipe_of
from ftcluster.errors import Interrupted
from ftcluster.operations.connection import CONNECTION
from ftcluster.operations.search.tune import TuneRequest, dry_run, forget, tune
from ftcluster.progress.view import TerminalView, make_view

BUDGET = "10m"
UNITS = {"": 1, "s": 1, "m": 60, "h": 3600}


def add_parser(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "tune",
        help="find the fastest launch settings for a recipe",
        description="Trains for some steps with different numbers of ranks per host and of cores "
        "for communication, and with different backends and allocators, and compares the samples "
        "per second. If the fastest settings beat the plan's default by more than the spread of "
        "repeated trials, they are saved, and plan and train use them for this recipe on these "
        "hosts.",
        usage="ftcluster tune [RECIPE] [key=value ...] [options]",
    )
    parser.add_argument(
        "words", nargs="*", metavar="RECIPE or key=value", help="as in train (default: quickstart)"
    )
    add_data(parser, "as in train")
    parser.add_argument("--model", metavar="DIR", help="as in train")
    add_code(parser)
    add_hosts(parser)
    parser.add_argument("--nodes", type=at_least(1), metavar="N", help="as in train")
    parser.add_argument(
        "--ranks-per-host",
        type=at_least(1),
        metavar="N",
        help="use this number of ranks per host in all trials",
    )
    parser.add_argument(
        "--budget",
        type=seconds,
        default=seconds(BUDGET),
        metavar="TIME",
        help=f"time limit, such as 90s, 10m or 1h (default: {BUDGET})",
    )
    parser.add_argument(
        "--batch",
        action="store_true",
        help="also try 2 and 4 times the batch_size; this gives a different model, because the "
        "learning rate stays the same",
    )
    parser.add_argument(
        "--seed",
        type=at_least(0),
        default=0,
        metavar="N",
        help="seed of the last round's order (default: 0)",
    )
    either = parser.add_mutually_exclusive_group()
    either.add_argument("--dry-run", action="store_true", help="only list what would be tried")
    either.add_argument(
        "--forget",
        action="store_true",
        help="delete the tuned settings of this recipe, for all hosts",
    )
    add_sharing(parser)
    add_cluster(parser)
    add_output(parser, verbose="print the steps of the trials, too")
    add_options(parser, ("--extra-vars", *CONNECTION))
    parser.set_defaults(run=run, takes_recipe=True)


def seconds(text: str) -> float:
    """Return a duration such as 90s, 10m or 1h in seconds.

    >>> seconds("90"), seconds("10m"), seconds("1.5h")
    (90.0, 600.0, 5400.0)
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text)
    if not match or not float(match[1]):
        raise argparse.ArgumentTypeError(f"'{text}' is not a time: write 90s, 10m or 1h")
    return float(match[1]) * UNITS[match[2]]


def run(options: argparse.Namespace) -> int:
    """Run the command and return the exit code."""
    request = TuneRequest(
        **recipe_of(options), budget_seconds=options.budget, batch=options.batch,
        seed=options.seed, launch=launch_options(options),
    )  # fmt: skip
    view = TerminalView(Console(file=sys.stderr, highlight=False))
    with connected(options) as connection:
        request = replace(request, connection=connection)
        if options.forget or options.dry_run:
            print_result(options, (forget if options.forget else dry_run)(request, view))
            return 0
        result = tune(request, view, make_view(True) if options.verbose else view)
    if not (result.stopped and options.json):
        print_result(options, result)
    if result.stopped:
        raise Interrupted("stopped; to list the trials: ftcluster ps", details=result.found)
    return 0
