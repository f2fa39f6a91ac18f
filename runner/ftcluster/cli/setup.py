"""`ftcluster setup [INVENTORY]`: turns hosts into a cluster."""

import argparse
from typing import Any

from ftcluster.cli.ansible_options import add_inventories, add_options, inventories_of
from ftcluster.cli.arguments import (
    add_accept_new_host_keys,
    add_allowances,
    add_output,
    not_empty,
)
from ftcluster.cli.connection import connected
from ftcluster.cli.output import print_result
from ftcluster.operations.connection import SETUP
from ftcluster.operations.setup.setup import SetupRequest, setup
from ftcluster.progress.view import make_view

FLAGS = ("--check", "--diff")


def add_parser(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "setup",
        help="turn the hosts of an inventory into a cluster",
        description="Turns the hosts of an inventory into a cluster, in the stages preflight, "
        "system, stack, mesh and verify. A second run changes nothing.",
        usage="ftcluster setup [INVENTORY] [options]",
    )
    add_inventories(
        parser,
        "any Ansible inventory, or 'localhost' for this machine (default: the cluster that was set "
        "up last from here, unless Ansible's configuration names another inventory)",
    )
    parser.add_argument(
        "--stack",
        type=not_empty,
        metavar="NAME",
        help="a stack listed by `ftcluster stacks`, or 'auto' for the first one that the "
        "hosts support (default: torch_stack_name of the inventory, else the cluster's stack, "
        "else `native`)",
    )
    parser.add_argument(
        "--bundle",
        type=not_empty,
        metavar="FILE",
        help="install from a file made by `ftcluster bundle`, without downloads",
    )
    add_allowances(parser)
    parser.add_argument(
        "--downgrade",
        action="store_true",
        help="install this ftcluster version even on hosts that have a newer version",
    )
    parser.add_argument(
        "--prune",
        action="store_true",
        help="remove the packages of scripts, and all stacks except the current and the previous "
        "one",
    )
    parser.add_argument(
        "--rollback", action="store_true", help="only switch all hosts back to the previous stack"
    )
    add_accept_new_host_keys(parser)
    add_output(parser)
    add_options(parser, SETUP, FLAGS)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the command and return the exit code."""
    names = (
        "allow_yanked", "allow_unverified", "downgrade", "prune", "rollback",
        "accept_new_host_keys",
    )  # fmt: skip
    flags = {name: getattr(options, name) for name in names}
    with connected(options, inventories_of(options), FLAGS) as connection:
        request = SetupRequest(connection, options.stack or "", options.bundle or "", **flags)
        print_result(options, setup(request, make_view(options.verbose)))
    return 0
