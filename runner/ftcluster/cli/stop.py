"""`ftcluster stop RUN ...`: ends runs on all their hosts."""

import argparse
from collections.abc import Sequence
from typing import Any

from ftcluster.ansible.options import ask_passwords
from ftcluster.cli.arguments import add_output, print_result
from ftcluster.cli.run_options import add_run_options, find
from ftcluster.errors import FtclusterError, UsageError
from ftcluster.launch.follow import stop
from ftcluster.launch.place import Place
from ftcluster.launch.record import complete_from
from ftcluster.launch.runs import find_run
from ftcluster_common.run_state import RunState


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
        raise UsageError("name the run", "list them: ftcluster ps")
    with ask_passwords(vars(options)) as passwords:
        # all of them first: a misspelt one is to stop none
        meant = dict.fromkeys(find(options, passwords, name) for name in options.words)
        ended = end(list(meant), options.force)
    documents = [one.to_dict() for _, one in ended]
    text = "\n".join(line for place, one in ended for line in lines(place.head, one))
    print_result(options, documents if len(options.words) > 1 else documents[0], text)
    return 0


def end(runs: Sequence[tuple[Place, str]], force: bool) -> list[tuple[Place, RunState]]:
    """End runs, one after the other; one that cannot be ended does not keep the others from it.

    Raises:
        FtclusterError: some may still be running; names each.
    """
    ended, failed = [], []
    for place, name in runs:
        try:
            stop(place, name, force=force)
            found = find_run(place, name)
        except FtclusterError as error:
            failed.append(error)
            continue
        complete_from(found)
        ended.append((place, found))
    if failed:
        message = "\n  ".join(one.message for one in failed)
        hints = "\n  ".join(dict.fromkeys(one.hint for one in failed if one.hint))
        stopped = [one.run for _, one in ended]
        raise FtclusterError(message, hints, {"stopped": stopped} if stopped else {})
    return ended


def lines(head: str, found: RunState) -> list[str]:
    """What a person is told of a run that has ended."""
    said = [f"{found.run}: {found.state}"]
    if found.state == "stopped" and found.checkpoint:
        said.append(f"checkpoint on {head}: {found.checkpoint}")
        said.append(f"continue it: ftcluster train --resume {found.run}")
    return said
