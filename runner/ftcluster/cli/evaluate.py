"""`ftcluster evaluate [RECIPE] --model DIR`: computes the metrics of a trained model."""

import argparse
from dataclasses import replace
from typing import Any

from ftcluster.cli.connection import connected
from ftcluster.cli.launch_arguments import launch_options
from ftcluster.cli.output import print_plan, print_result
from ftcluster.cli.recipe import add_use, recipe_of
from ftcluster.operations.models.evaluate import EvaluateRequest, evaluate
from ftcluster.operations.models.trained import dry_run
from ftcluster.progress.view import make_view


def add_parser(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "evaluate",
        help="evaluate a trained model",
        description="Evaluates a trained model on the recipe's validation sets, or on all rows of "
        "--data FILE, on all hosts of the cluster that was set up last. Trains nothing.",
        usage="ftcluster evaluate [RECIPE] --model DIR [key=value ...] [options]",
    )
    add_use(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the command and return the exit code."""
    request = EvaluateRequest(
        **recipe_of(options), hub_token=options.hf_token, launch=launch_options(options)
    )
    view = make_view(options.verbose)
    with connected(options) as connection:
        request = replace(request, connection=connection)
        if options.dry_run:
            print_plan(options, dry_run(request, view))
        else:
            print_result(options, evaluate(request, view))
    return 0
