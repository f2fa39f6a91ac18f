"""`ftcluster stop RUN`: ends a run on all its hosts."""

import argparse
from typing import Any

from ftcluster.ansible.options import ask_passwords
from ftcluster.cli.arguments import add_output, print_result
from ftcluster.cli.run_options import add_run_options, find
from ftcluster.launch.follow import stop
from ftcluster.launch.record import complete_from
from ftcluster.launch.runs import find_run


def add_parser(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "stop",
        help="end a run",
        description="Ends a run on all its hosts; says so where it has ended already. A training "
        "saves a checkpoint first, so that train --resume continues it.",
        usage="ftcluster stop RUN [options]",
    )
    add_run_options(parser, "RUN", "its id, or how that begins")
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
    with ask_passwords(vars(options)) as passwords:
        place, name = find(options, passwords, newest=False)
        stop(place, name, force=options.force)
        found = find_run(place, name)
    complete_from(found)
    lines = [f"{found.run}: {found.state}"]
    if found.state == "stopped" and found.checkpoint:
        lines.append(f"checkpoint on {place.head}: {found.checkpoint}")
        lines.append(f"continue it: ftcluster train --resume {found.run}")
    print_result(options, found.to_dict(), "\n".join(lines))
    return 0
