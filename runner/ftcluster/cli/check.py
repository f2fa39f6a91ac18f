"""`ftcluster check [INVENTORY]`: checks whether a cluster is ready for training."""

import argparse
from pathlib import Path
from typing import Any

from ftcluster.cli.ansible_options import add_inventories, add_options, inventories_of
from ftcluster.cli.arguments import add_accept_new_host_keys, add_output
from ftcluster.cli.connection import connected
from ftcluster.cli.output import print_result
from ftcluster.operations.connection import CONNECTION
from ftcluster.operations.setup.check import check
from ftcluster.progress.view import View, make_view
from ftcluster.text.terminal import print_lines

OPTIONS = ("--limit", "--extra-vars", "--forks", *CONNECTION)


def add_parser(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "check",
        help="check whether a cluster is fit for training",
        description="Checks the hosts, starts a rank on each host, compares the hosts' software "
        "and measures their computing and communication speed. Changes nothing. Exit code 0: fit; "
        "1: unfit; 2: wrong usage.",
        usage="ftcluster check [INVENTORY] [options]",
    )
    add_inventories(
        parser, "any Ansible inventory, or 'localhost'; default: the cluster that was set up last"
    )
    parser.add_argument(
        "--strict", action="store_true", help="exit with 1 on warnings too, for use in cron"
    )
    parser.add_argument(
        "-q", "--quiet", action="store_true", help="print one line, and no progress"
    )
    parser.add_argument(
        "--system-report",
        type=Path,
        metavar="FILE",
        help="also write a report about the hosts that you can share: it contains no names and no "
        "addresses",
    )
    add_accept_new_host_keys(parser)
    add_output(parser)
    add_options(parser, OPTIONS)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the command and return the exit code."""
    view = View() if options.quiet else make_view(options.verbose)
    accept_new = options.accept_new_host_keys
    with connected(options, inventories_of(options)) as connection:
        result = check(connection, view, accept_new, options.system_report)
    if options.quiet and not options.json:
        print_lines([result.line()])
    else:
        print_result(options, result)
    return 0 if result.fit and not (options.strict and result.warnings) else 1
