"""`ftcluster logs [RUN]`: what a run's ranks have printed."""

import argparse
import os
import sys
import tempfile
from pathlib import Path
from typing import Any, BinaryIO

from ftcluster.ansible.options import ask_passwords
from ftcluster.cli.arguments import at_least
from ftcluster.cli.run_options import add_run_options, find, one_name
from ftcluster.errors import UsageError
from ftcluster.launch.runs import copy_log, find_run
from ftcluster.text.plural import counted
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
    parser.add_argument("-f", "--follow", action="store_true", help="until the run ends")
    parser.add_argument("--rank", type=at_least(0), metavar="N", help="of one rank only")
    parser.set_defaults(run=run, json=False)


def run(options: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    given = one_name(options.words)
    file = ALL_RANKS if options.rank is None else f"logs/rank-{options.rank}.log"
    with ask_passwords(vars(options)) as passwords, tempfile.TemporaryDirectory() as folder:
        place, name = find(options, passwords, given)
        if options.rank is not None:
            _check_rank(name, options.rank, find_run(place, name).ranks)
        destination = Path(folder) / "log"
        destination.touch()
        with destination.open("rb") as log:
            copy_log(place, name, file, destination, options.follow, lambda: show(log))
            show(log, incomplete=True)
    return 0


def _check_rank(run: str, rank: int, ranks: int) -> None:
    if rank >= ranks:
        known = f": 0 to {ranks - 1}" if ranks else ""
        raise UsageError(f"{run} has no rank {rank}, it has {counted(ranks, 'rank')}{known}")


def show(log: BinaryIO, incomplete: bool = False) -> None:
    """Print the lines that have come since the last call.

    Args:
        log: where they are read from.
        incomplete: whether also the last one, which may lack its end.
    """
    data = log.read()
    if not incomplete:
        end = data.rfind(b"\n") + 1
        log.seek(end - len(data), os.SEEK_CUR)
        data = data[:end]
    if data:
        print(printable(data.decode(errors="replace")), end="", flush=True, file=sys.stdout)
