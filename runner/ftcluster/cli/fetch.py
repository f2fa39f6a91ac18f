"""`ftcluster fetch [RUN] [DIR]`: brings the model of a run, or a script's files, home."""

import argparse
from typing import Any

from ftcluster.cli.arguments import add_output
from ftcluster.cli.connection import add_run_options, connected
from ftcluster.cli.output import print_result
from ftcluster.errors import UsageError
from ftcluster.operations.runs import fetch
from ftcluster.progress.view import make_view


def add_parser(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "fetch",
        help="copy a run's model, or a script's files, to this machine",
        description="Copies the model that a run has trained to this machine; of a script, what it "
        "has written on the head into the folder that it starts in. The folder is there only once "
        "it is whole.",
        usage="ftcluster fetch [RUN [DIR]] [options]",
    )
    add_run_options(
        parser, "RUN [DIR]", "its id (left out: the newest run), and a folder (left out: the id)"
    )
    parser.add_argument(
        "--reports",
        action="store_true",
        help="copy what the trackers of report_to have written on the head instead",
    )
    add_output(parser, verbose="")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    if len(options.words) > 2:
        raise UsageError("one run and one folder at a time")
    run, folder, *_ = [*list(options.words), "", ""]
    with connected(options) as connection:
        print_result(options, fetch(connection, run, folder, make_view(False), options.reports))
    return 0
