"""`ftcluster ps`: lists the runs on the cluster."""

import argparse
import shutil
import sys
from typing import Any

from ftcluster.cli.arguments import add_output
from ftcluster.cli.connection import add_run_options, connected
from ftcluster.cli.output import print_result
from ftcluster.errors import UsageError
from ftcluster.operations.result import Result
from ftcluster.operations.runs.runs import list_runs, table, uses
from ftcluster.progress.view import make_view
from ftcluster.text.plural import counted
from ftcluster.text.terminal import print_lines

NEWEST = 200


def add_parser(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "ps",
        help="list the runs",
        description="Lists the runs of all users on the cluster, the newest first, and shows who "
        "uses which hosts.",
        usage="ftcluster ps [--all] [options]",
    )
    parser.add_argument(
        "--all",
        action="store_true",
        help=f"list all runs, not only the newest {NEWEST}",
    )
    add_run_options(parser, "", argparse.SUPPRESS)
    add_output(parser, verbose="")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the command and return the exit code."""
    if options.words:
        raise UsageError(
            f"ps takes no arguments, got {' '.join(options.words)}",
            "to follow a run: ftcluster attach RUN",
        )
    with connected(options) as connection:
        listing = list_runs(connection, make_view(False), 0 if options.all else NEWEST)
    runs = listing.runs
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    text = [*table(runs, width), *uses(runs, listing.hosts)] if runs else ["no runs"]
    if listing.omitted:
        omitted = counted(listing.omitted, "older run")
        print_lines([f"{omitted} not shown; to list all runs: ftcluster ps --all"], sys.stderr)
    print_result(options, Result([run.to_dict() for run in runs], tuple(text)))
    return 0
