"""`ftcluster ps`: the runs that the cluster's head knows of."""

import argparse
from typing import Any

from ftcluster.cli.arguments import add_output
from ftcluster.cli.connection import add_run_options, connected
from ftcluster.cli.output import print_result
from ftcluster.errors import UsageError
from ftcluster.operations.result import Result
from ftcluster.operations.runs import list_runs, table
from ftcluster.progress.view import make_view


def add_parser(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "ps",
        help="list the runs",
        description="Lists the runs on the cluster, the newest first, whoever started them.",
        usage="ftcluster ps [options]",
    )
    add_run_options(parser, "", argparse.SUPPRESS)
    add_output(parser, verbose="")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    if options.words:
        raise UsageError(f"ps takes no {options.words[0]}", "one run: ftcluster attach RUN")
    with connected(options) as connection:
        runs = list_runs(connection, make_view(False))
    text = table(runs) if runs else ["no runs"]
    print_result(options, Result([one.to_dict() for one in runs], tuple(text)))
    return 0
