"""`ftcluster clean [RUN ...]`: removes ended runs from the hosts, or empties caches."""

import argparse
import re
import sys
from typing import Any

from ftcluster.cli.arguments import add_dry_run, add_output
from ftcluster.cli.connection import add_run_options, connected
from ftcluster.cli.output import print_result
from ftcluster.errors import FtclusterError, UsageError
from ftcluster.operations.connection import Connection
from ftcluster.operations.runs.caches import caches
from ftcluster.operations.runs.clean import CleanRequest, remove, select
from ftcluster.progress.view import make_view
from ftcluster.text.plural import counted
from ftcluster.text.terminal import print_lines

SECONDS = {"h": 3600, "d": 86400, "w": 7 * 86400}


def age(text: str) -> int:
    """Return an age such as 12h, 7d or 2w in seconds; an argparse type."""
    match = re.fullmatch(r"(\d{1,5})([hdw])", text, re.ASCII)
    if not match:
        raise argparse.ArgumentTypeError(f"'{text}' is not an age such as 12h, 7d or 2w")
    return int(match[1]) * SECONDS[match[2]]


def add_parser(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "clean",
        help="remove ended runs from the hosts",
        description="Removes the folders of runs from all hosts, with their logs, checkpoints and "
        "models. If you name no run, the command lists your runs that failed or were stopped and "
        "cannot be resumed, and asks before it removes them. Active runs are never removed. With "
        "--cache, it empties the caches instead: models, data and token samples on the hosts, and "
        "wheels on this machine, except files that an active run uses.",
        usage="ftcluster clean [RUN ...] [--done] [--resumable] [--all] [--older-than AGE] "
        "[--cache] [--yes] [options]",
    )
    add_run_options(parser, "RUN", "ids of runs (default: your runs that failed or were stopped)")
    add_output(parser, verbose="")
    parser.add_argument("--done", action="store_true", help="also runs that are done")
    parser.add_argument(
        "--resumable", action="store_true", help="also runs that train --resume could continue"
    )
    parser.add_argument("--all", action="store_true", help="also runs of other users")
    parser.add_argument(
        "--older-than", type=age, default=0, metavar="AGE", help="only runs that ended at least "
        "this long ago: 12h, 7d, 2w",
    )  # fmt: skip
    parser.add_argument(
        "--cache", action="store_true", help="empty the caches of hosts and control node instead"
    )
    parser.add_argument("--yes", action="store_true", help="remove without asking")
    add_dry_run(parser, "only print what would be removed")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the command and return the exit code."""
    names = ("done", "resumable", "all", "older_than")
    filters = {name: getattr(options, name) for name in names}
    if options.cache and (options.words or any(filters.values())):
        raise UsageError(
            "--cache removes no runs: do not name runs, and do not pass options that select runs",
            "combine --cache only with --dry-run or --yes",
        )
    with connected(options) as connection:
        if options.cache:
            return _clean_caches(options, connection)
        request = CleanRequest(connection, tuple(options.words), **filters)
        chosen = select(request, make_view(False))
        if not options.dry_run:
            if chosen.unnamed and not options.yes:
                _ask(chosen.table(), counted(len(chosen.runs), "run"), "pass --yes, or name runs")
            chosen = remove(chosen)
    print_result(options, chosen.result())
    return 0


def _clean_caches(options: argparse.Namespace, connection: Connection) -> int:
    view = make_view(False)
    if not (options.dry_run or options.yes):
        _ask(caches(connection, False, view).lines(), "cached files that no run uses", "pass --yes")
    print_result(options, caches(connection, not options.dry_run, view))
    return 0


def _ask(shown: list[str], what: str, hint: str) -> None:
    """Show the runs or caches that would be removed, and ask the user.

    Args:
        shown: lines that describe the runs or caches.
        what: name of the runs or caches in messages.
        hint: alternatives to an answer on the terminal.

    Raises:
        UsageError: there is no terminal.
        FtclusterError: the user does not agree.
    """
    print_lines(shown, sys.stderr)
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError(
            f"{what} would be removed, but there is no terminal to ask you first",
            f"{hint}; nothing was removed",
        )
    answer = make_view(False).ask(f"remove {what}? [y/N] ")
    if answer.lower() not in ("y", "yes"):
        raise FtclusterError("nothing was removed")
