"""`ftcluster predict [RECIPE] --model DIR --data PATH --output FILE`: predicts rows of data."""

import argparse
from dataclasses import replace
from typing import Any

from ftcluster.cli.connection import connected
from ftcluster.cli.launch_arguments import launch_options
from ftcluster.cli.output import print_plan, print_result
from ftcluster.cli.recipe import add_use, recipe_of
from ftcluster.operations.models.predict import PredictRequest, predict
from ftcluster.operations.models.trained import dry_run
from ftcluster.progress.view import make_view


def add_parser(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "predict",
        help="write a trained model's predictions for rows of data",
        description="Predicts the class, number, answer or embedding of each row of --data, on all "
        "hosts of the cluster that was set up last. The rows need no labels. The output contains "
        "the rows in the same order, with the column `prediction` and, for classes, `probability`. "
        "On a single host without AMX, `ftcluster export-model openvino --int8` makes a model that "
        "predicts classes faster, but with slightly different probabilities.",
        usage="ftcluster predict [RECIPE] --model DIR --output FILE [key=value ...] [options]",
    )
    add_use(parser)
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        required=True,
        help="*.jsonl, *.csv or *.tsv; an existing file is replaced",
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the command and return the exit code."""
    request = PredictRequest(
        **recipe_of(options),
        hub_token=options.hf_token,
        launch=launch_options(options),
        output=options.output,
    )
    view = make_view(options.verbose)
    with connected(options) as connection:
        request = replace(request, connection=connection)
        if options.dry_run:
            print_plan(options, dry_run(request, view))
        else:
            print_result(options, predict(request, view))
    return 0
