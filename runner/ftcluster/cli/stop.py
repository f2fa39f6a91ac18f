"""`ftcluster stop RUN ...`: stops runs on all their hosts."""

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
        help="stop runs",
        description="Stops runs on all their hosts, and reports runs that have already ended. A "
        "training saves a checkpoint first, so that train --resume can continue it.",
        usage="ftcluster stop RUN ... [options]",
    )
    add_run_options(parser, "RUN", "ids of runs, or their beginnings")
    parser.add_argument(
        "--force",
        action="store_true",
        help="kill the run at once, and its supervisor too if necessary; save nothing, and do not "
        "wait for hosts that do not respond",
    )
    add_output(parser, verbose="")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the command and return the exit code."""
    if not options.words:
        raise UsageError(
            "stop needs the id of a run, or the beginning of an id", "list the runs: ftcluster ps"
        )
    with connected(options) as connection:
        print_result(options, stop(connection, options.words, options.force, make_view(False)))
    return 0
