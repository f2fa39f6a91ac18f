"""`ftcluster data [RECIPE] --data PATH`: shows the training data and its target tokens."""

import argparse
from dataclasses import replace
from typing import Any

from ftcluster.cli.ansible_options import add_options
from ftcluster.cli.arguments import add_output
from ftcluster.cli.connection import add_cluster, connected
from ftcluster.cli.launch_arguments import add_hub_token
from ftcluster.cli.output import print_result
from ftcluster.cli.recipe import add_recipe, recipe_of
from ftcluster.operations.connection import CONNECTION
from ftcluster.operations.plan.data import DataRequest, describe
from ftcluster.progress.view import make_view


def add_parser(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "data",
        help="show the data that train would read",
        description="Shows the data that `ftcluster train` would read with the same arguments: "
        "columns, rows, classes, and validation rows that are also in the training data. The head "
        "of the cluster adds lengths in tokens, and samples as the model receives them, with the "
        "target tokens marked. Trains nothing.",
        usage="ftcluster data [RECIPE] [key=value ...] [options]",
    )
    add_recipe(parser)
    parser.add_argument(
        "--here",
        action="store_true",
        help="do not ask the head; the output then contains no lengths and no samples",
    )
    add_hub_token(parser)
    add_cluster(parser)
    add_output(parser, verbose="print plain lines instead of the live view")
    add_options(parser, ("--extra-vars", *CONNECTION))
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the command and return the exit code."""
    request = DataRequest(**recipe_of(options), hub_token=options.hf_token, here=options.here)
    view = make_view(options.verbose)
    with connected(options) as connection:
        print_result(options, describe(replace(request, connection=connection), view))
    return 0
