"""`ftcluster completion SHELL`: prints a script that completes commands and options."""

import argparse
from typing import Any

from ftcluster.errors import UsageError

SHELLS = ("bash", "zsh", "tcsh")


def add_parser(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "completion",
        help="print a completion script for a shell",
        description="Prints a script that makes a shell complete commands and options.",
        usage="ftcluster completion bash|zsh|tcsh",
    )
    parser.add_argument("words", nargs="*", metavar="SHELL", help=", ".join(SHELLS))
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the command and return the exit code."""
    if len(options.words) != 1 or options.words[0] not in SHELLS:
        raise UsageError("name one shell", options.parser.usage_line())
    import shtab  # imported here so that other commands start faster

    print(shtab.complete(options.main_parser, shell=options.words[0]))
    return 0
