"""`ftcluster logs [RUN]`: shows the output of a run's ranks."""

import argparse
from typing import Any

from ftcluster.cli.arguments import at_least
from ftcluster.cli.connection import add_run_options, connected, one_name
from ftcluster.operations.runs.runs import LogsRequest, logs
from ftcluster.progress.view import make_view


def add_parser(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "logs",
        help="show the output of a run's ranks",
        description="Shows the output of a run's ranks, each line with its rank.",
        usage="ftcluster logs [RUN] [-f] [--rank N] [options]",
    )
    add_run_options(parser, "RUN", "id of the run, or its beginning (default: the newest run)")
    parser.add_argument(
        "-f", "--follow", action="store_true", help="follow the output until the run ends"
    )
    parser.add_argument("--rank", type=at_least(0), metavar="N", help="show only rank N")
    parser.set_defaults(run=run, json=False)


def run(options: argparse.Namespace) -> int:
    """Run the command and return the exit code."""
    run_name = one_name(options.words)

    def show(text: str) -> None:
        print(text, end="", flush=True)

    with connected(options) as connection:
        request = LogsRequest(connection, run_name, options.rank, options.follow)
        logs(request, show, make_view(False))
    return 0
