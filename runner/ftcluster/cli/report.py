"""`ftcluster report [RUN ...]`: writes an HTML page about runs."""

import argparse
from pathlib import Path
from typing import Any

from ftcluster.cli.arguments import add_output
from ftcluster.cli.connection import add_run_options, connected
from ftcluster.cli.output import print_result
from ftcluster.operations.runs.report import SEVERAL, ReportRequest, report
from ftcluster.progress.view import make_view


def add_parser(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "report",
        help="write an HTML page with pictures about runs",
        description="Writes an HTML page about one run, or about several runs side by side: the "
        "placement of ranks, the course of the training, what limits its speed, the slowest host, "
        "and the effect of one more host. The page needs no other file and no network.",
        usage="ftcluster report [RUN ...] [-o FILE] [--scaling FILE] [options]",
    )
    add_run_options(parser, "RUN", "ids of runs, or their beginnings (default: the newest run)")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE",
        help=f"path of the page (default: RUN.html; for several runs {SEVERAL})",
    )  # fmt: skip
    parser.add_argument(
        "--scaling",
        type=Path,
        metavar="FILE",
        help="also show this output of `ftcluster bench scaling --json`",
    )
    add_output(parser, verbose="")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the command and return the exit code."""
    with connected(options) as connection:
        request = ReportRequest(connection, tuple(options.words), options.output, options.scaling)
        print_result(options, report(request, make_view(False)))
    return 0
