"""`ftcluster plan [RECIPE]`: shows the ranks that train would start, and the reasons."""

import argparse
from typing import Any

from ftcluster.cli.arguments import add_commands, add_output
from ftcluster.cli.output import print_plan, print_result
from ftcluster.cli.recipe import add_training, recipe_of
from ftcluster.errors import UsageError
from ftcluster.operations.plan.common_hosts import NAMED
from ftcluster.operations.plan.plan import compare, plan
from ftcluster.operations.train.prepare import RecipeRequest


def add_parser(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "plan",
        help="show the ranks that train would start, and why",
        description="Shows what `ftcluster train` would start with the same arguments: the ranks "
        "on each host with their cores, threads and memory, and the reason for every decision. "
        "Starts nothing.",
        usage="ftcluster plan [RECIPE] [key=value ...] [options]",
    )
    add_training(parser)
    parser.add_argument(
        "--facts",
        metavar="FILE",
        action="append",
        help="plan for the hosts in FILE, the output of `ftcluster plan --json`, or for common "
        f"hosts ({NAMED}; 4xNAME: four of them), instead of the cluster that was set up last; "
        "repeat the option to compare time and cost of an epoch",
    )
    add_commands(parser)
    add_output(parser, verbose="")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the command and return the exit code."""
    request = RecipeRequest(**recipe_of(options))
    files = options.facts or []
    if len(files) > 1 and options.commands:
        raise UsageError("--commands shows the commands of a single plan: use --facts only once")
    if len(files) > 1:
        print_result(options, compare(request, files))
    else:
        print_plan(options, plan(request, files[0] if files else None))
    return 0
