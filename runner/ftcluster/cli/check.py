"""`ftcluster check [INVENTORY]`: whether a cluster is fit for training, and why not."""

import argparse
from typing import Any

from ftcluster.cli.ansible_options import add_inventories, add_options, inventories_of
from ftcluster.cli.arguments import add_accept_new_host_keys, add_output
from ftcluster.cli.connection import connected
from ftcluster.cli.output import print_result
from ftcluster.operations.check import check
from ftcluster.operations.connection import CONNECTION
from ftcluster.progress.view import make_view

OPTIONS = ("--limit", "--extra-vars", "--forks", *CONNECTION)


def add_parser(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "check",
        help="check whether a cluster is fit for training",
        description="Checks the hosts, starts a rank on each, compares their software and measures "
        "how fast they compute and communicate. Changes nothing. Exit code 0: fit; 1: unfit; 2: "
        "wrong usage.",
        usage="ftcluster check [INVENTORY] [options]",
    )
    add_inventories(
        parser, "any Ansible inventory, or 'localhost'; default: the cluster that was set up last"
    )
    parser.add_argument(
        "--strict", action="store_true", help="exit code 1 also where it warns, as for cron"
    )
    add_accept_new_host_keys(parser)
    add_output(parser)
    add_options(parser, OPTIONS)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    view, accept_new = make_view(options.verbose), options.accept_new_host_keys
    with connected(options, inventories_of(options)) as connection:
        result = check(connection, view, accept_new)
    print_result(options, result)
    return 0 if result.fit and not (options.strict and result.warnings) else 1
