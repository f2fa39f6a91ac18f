"""`ftcluster clean [RUN ...]`: removes what ended runs left on the hosts."""

import argparse
import re
import shutil
import sys
import time
from collections.abc import Sequence
from typing import Any

from ftcluster.ansible.options import ask_passwords
from ftcluster.cli.arguments import add_dry_run, add_output, print_result
from ftcluster.cli.run_options import add_run_options, all_runs, cluster_place
from ftcluster.errors import FtclusterError, UsageError
from ftcluster.launch.follow import this_user
from ftcluster.launch.record import record_dir, recorded_runs
from ftcluster.launch.runs import clean_runs
from ftcluster.progress.format import duration
from ftcluster.text.plural import counted
from ftcluster.text.table import aligned
from ftcluster.text.terminal import print_lines
from ftcluster_common.run_state import RunState

SECONDS = {"h": 3600, "d": 86400, "w": 7 * 86400}
COLUMNS = ("run", "state", "ended", "by")


def age(text: str) -> int:
    """The type of an age such as 12h, 7d or 2w, in seconds."""
    found = re.fullmatch(r"(\d{1,5})([hdw])", text, re.ASCII)
    if not found:
        raise argparse.ArgumentTypeError(f"'{text}' is no age such as 12h, 7d or 2w")
    return int(found[1]) * SECONDS[found[2]]


def add_parser(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "clean",
        help="remove ended runs from the hosts",
        description="Removes the folders of runs from all hosts, with their logs, checkpoints and "
        "models: of the runs that are named, or of your own that have failed or were stopped and "
        "cannot be resumed. Without names it lists them and asks. A run that is running is left "
        "alone.",
        usage="ftcluster clean [RUN ...] [--done] [--resumable] [--all] [--older-than AGE] [--yes] "
        "[options]",
    )
    add_run_options(parser, "RUN", "their ids; left out, your own that have failed or were stopped")
    add_output(parser, verbose="")
    parser.add_argument("--done", action="store_true", help="also those that are done")
    parser.add_argument(
        "--resumable", action="store_true", help="also those that train --resume could continue"
    )
    parser.add_argument("--all", action="store_true", help="also those of others")
    parser.add_argument(
        "--older-than", type=age, default=0, metavar="AGE", help="only those that ended so long "
        "ago: 12h, 7d, 2w",
    )  # fmt: skip
    parser.add_argument("--yes", action="store_true", help="do not ask")
    add_dry_run(parser, "only print what would be removed")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    narrowed = options.done or options.resumable or options.all or options.older_than
    if options.words and narrowed:
        raise UsageError("name runs, or say which with --done, --resumable, --all, --older-than")
    with ask_passwords(vars(options)) as passwords:
        place = cluster_place(options, passwords)
        runs = {one.run: one for one in all_runs(place)}
        if options.words:
            _check(options.words, runs, place.head)
            chosen = list(options.words)
        else:
            found = [one for one in runs.values() if _is_meant(one, options)]
            chosen = [one.run for one in found]
            if chosen and not (options.dry_run or options.yes):
                _ask(found)
        removed = chosen
        if chosen and not options.dry_run:
            removed = clean_runs(place, tuple(chosen))
            for name in removed:
                shutil.rmtree(record_dir(name), ignore_errors=True)
    text = "\n".join(removed) or "nothing to remove"
    print_result(options, {"state": "done", "removed": removed}, text)
    return 0


def is_resumable(run: RunState) -> bool:
    """Whether it has ended early, and has trained: `train --resume` may continue it."""
    return run.state in ("failed", "stopped") and bool(run.step or run.checkpoint)


def _is_meant(run: RunState, options: argparse.Namespace) -> bool:
    states = ("failed", "stopped", *(("done",) if options.done else ()))
    own = run.started_by == this_user() or run.run in recorded_runs(run.run)
    return (
        run.state in states
        and (options.all or own)
        and (options.resumable or not is_resumable(run))
        and time.time() - run.started - run.seconds >= options.older_than
    )


def _ask(runs: Sequence[RunState]) -> None:
    """Show what goes, and ask.

    Raises:
        UsageError: there is no terminal.
        FtclusterError: the answer is no.
    """
    rows = [(one.run, one.state, _ended(one), one.started_by or "-") for one in runs]
    print_lines(aligned([COLUMNS, *rows]), sys.stderr)
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError(
            f"{counted(len(runs), 'run')} would be removed, and there is no terminal to ask on",
            "give --yes, or name the runs; nothing was removed",
        )
    print(f"remove {counted(len(runs), 'run')}? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise FtclusterError("nothing was removed")


def _ended(run: RunState) -> str:
    return f"{duration(max(0.0, time.time() - run.started - run.seconds))} ago"


def _check(names: Sequence[str], runs: dict[str, RunState], head: str) -> None:
    problems = [f"there is no run '{name}' on {head}" for name in names if name not in runs]
    problems += [
        f"{name} is running" for name in names if name in runs and runs[name].state == "running"
    ]
    if problems:
        raise FtclusterError("\n  ".join(problems), "nothing was removed; list them: ftcluster ps")
