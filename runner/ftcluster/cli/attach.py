"""`ftcluster attach [RUN]`: follows a run that was launched earlier."""

import argparse
import sys
from typing import Any

from ftcluster.cli.arguments import add_output
from ftcluster.cli.connection import add_run_options, connected, one_name
from ftcluster.cli.output import print_result
from ftcluster.operations.runs.attach import attach
from ftcluster.progress.view import make_view
from ftcluster.text.streams import shown_on


def add_parser(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "attach",
        help="follow a run to its end",
        description="Follows a run to its end, even if it was started from another control node. "
        "Ctrl-C ends only this command: the run continues.",
        usage="ftcluster attach [RUN] [options]",
    )
    add_run_options(parser, "RUN", "id of the run, or its beginning (default: the newest run)")
    add_output(parser, verbose="print plain lines instead of the live view")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the command and return the exit code."""
    run_name = one_name(options.words)

    def on_output(text: str) -> None:
        if not options.json:
            print(shown_on(sys.stdout, text), end="", flush=True)

    with connected(options) as connection:
        result = attach(connection, run_name, make_view(options.verbose), on_output)
    print_result(options, result)
    return 0
