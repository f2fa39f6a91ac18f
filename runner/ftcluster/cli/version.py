"""`ftcluster version`: shows the versions on this control node."""

import argparse
import platform
from importlib.metadata import version
from typing import Any

from ftcluster.cli.arguments import add_output
from ftcluster.cli.output import print_result
from ftcluster.errors import UsageError
from ftcluster.operations.result import Result
from ftcluster_common import __version__


def add_parser(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "version",
        help="show the versions of ftcluster, Python and Ansible",
        description="Shows the versions of ftcluster, Python and Ansible on this machine. For the "
        "versions on hosts: ftcluster stacks.",
        usage="ftcluster version [--json]",
    )
    add_output(parser, verbose="")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the command and return the exit code."""
    if options.words:
        raise UsageError(f"version takes no arguments, got {' '.join(options.words)}")
    versions = {
        "ftcluster": __version__,
        "python": platform.python_version(),
        "ansible-core": version("ansible-core"),
    }
    text = ", ".join(f"{name} {number}" for name, number in versions.items())
    print_result(options, Result(versions, (text,)))
    return 0
