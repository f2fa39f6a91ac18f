"""`ftcluster teardown INVENTORY`: removes a cluster from its hosts."""

import argparse
from typing import Any

from ftcluster.cli.ansible_options import add_inventories, add_options, inventories_of
from ftcluster.cli.arguments import add_output
from ftcluster.cli.connection import connected
from ftcluster.cli.output import print_result
from ftcluster.operations.connection import SETUP
from ftcluster.operations.setup.setup import teardown
from ftcluster.progress.view import make_view

FLAGS = ("--check", "--diff")


def add_parser(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "teardown",
        help="remove a cluster from its hosts",
        description="Removes the software that setup installed on the hosts. Keeps the runs with "
        "their models; -e ftcluster_remove_runs=true removes the runs too.",
        usage="ftcluster teardown INVENTORY [options]",
    )
    add_inventories(parser, "the cluster's inventory")
    add_output(parser)
    add_options(parser, SETUP, FLAGS)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the command and return the exit code."""
    with connected(options, inventories_of(options), FLAGS) as connection:
        print_result(options, teardown(connection, make_view(options.verbose)))
    return 0
