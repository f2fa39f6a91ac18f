"""`ftcluster stop RUN ...`: ends runs on all their hosts."""

import argparse
from typing import Any

from ftcluster.cli.arguments import add_output
from ftcluster.cli.connection import add_run_options, connected
from ftcluster.cli.output import print_result
from ftcluster.errors import UsageError
from ftcluster.operations.runs.runs import stop
from ftcluster.progress.view import make_view


def add_parser(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "stop",
        help="end runs",
        description="Ends runs on all their hosts; says so where one has ended already. A training "
        "saves a checkpoint first, so that train --resume continues it.",
        usage="ftcluster stop RUN ... [options]",
    )
    add_run_options(parser, "RUN", "their ids, or how these begin")
    parser.add_argument(
        "--force",
        action="store_true",
        help="end it at once, and its supervisor as well, where that does not end the run: nothing "
        "is saved, and hosts that do not answer are not waited for",
    )
    add_output(parser, verbose="")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    if not options.words:
        raise UsageError(
            "stop needs the id of a run, or how it begins", "list the runs: ftcluster ps"
        )
    with connected(options) as connection:
        print_result(options, stop(connection, options.words, options.force, make_view(False)))
    return 0
