"""`ftcluster clean [RUN ...]`: removes what ended runs left on the hosts."""

import argparse
import shutil
from typing import Any

from ftcluster.ansible.options import ask_passwords
from ftcluster.cli.arguments import add_dry_run, add_output, print_result
from ftcluster.cli.run_options import add_run_options, all_runs, cluster_place
from ftcluster.errors import FtclusterError
from ftcluster.launch.record import record_dir
from ftcluster.launch.runs import clean_runs


def add_parser(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "clean",
        help="remove ended runs from the hosts",
        description="Removes the folders of runs from all hosts, with their logs, checkpoints and "
        "models: of the runs that are named, or of all that have failed or were stopped. A run "
        "that is running is left alone.",
        usage="ftcluster clean [RUN ...] [--done] [options]",
    )
    add_run_options(parser, "RUN", "their ids; left out, those that have failed or were stopped")
    add_output(parser, verbose="")
    parser.add_argument("--done", action="store_true", help="also those that are done")
    add_dry_run(parser, "only print what would be removed")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    with ask_passwords(vars(options)) as passwords:
        place = cluster_place(options, passwords)
        state_of = {one.run: one.state for one in all_runs(place)}
        _check(options.words, state_of, place.head)
        states = ("failed", "stopped", *(("done",) if options.done else ()))
        chosen = tuple(options.words) or tuple(
            name for name, state in state_of.items() if state in states
        )
        if options.dry_run or not chosen:
            removed = list(chosen)
        else:
            removed = clean_runs(place, chosen)
            for name in removed:
                shutil.rmtree(record_dir(name), ignore_errors=True)
    text = "\n".join(removed) or "nothing to remove"
    print_result(options, {"state": "done", "removed": removed}, text)
    return 0


def _check(names: list[str], state_of: dict[str, str], head: str) -> None:
    problems = [f"there is no run '{name}' on {head}" for name in names if name not in state_of]
    problems += [f"{name} is running" for name in names if state_of.get(name) == "running"]
    if problems:
        raise FtclusterError("\n  ".join(problems), "nothing was removed; list them: ftcluster ps")
