"""`ftcluster logs [RUN]`: what a run's ranks have printed."""

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any, BinaryIO

from ftcluster.ansible.options import ask_passwords
from ftcluster.cli.arguments import add_output
from ftcluster.cli.run_options import add_run_options, find
from ftcluster.launch.runs import copy_log
from ftcluster.text.printable import printable

ALL_RANKS = "ranks.log"


def add_parser(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "logs",
        help="show what the ranks of a run have printed",
        description="Shows what the ranks of a run have printed, each line with its rank.",
        usage="ftcluster logs [RUN] [-f] [--rank N] [options]",
    )
    add_run_options(parser, "RUN", "its id, or how that begins; left out, the newest run")
    add_output(parser, verbose="")
    parser.add_argument("-f", "--follow", action="store_true", help="until the run ends")
    parser.add_argument("--rank", type=int, metavar="N", help="of one rank only")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    file = ALL_RANKS if options.rank is None else f"logs/rank-{options.rank}.log"
    with ask_passwords(vars(options)) as passwords, tempfile.TemporaryDirectory() as folder:
        place, name = find(options, passwords, newest=True)
        destination = Path(folder) / "log"
        destination.touch()
        with destination.open("rb") as log:
            copy_log(place, name, file, destination, options.follow, lambda: show(log))
    return 0


def show(log: BinaryIO) -> None:
    """Print what has come since the last call."""
    data = log.read()
    if data:
        print(printable(data.decode(errors="replace")), end="", flush=True, file=sys.stdout)
