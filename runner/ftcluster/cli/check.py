"""`ftcluster check [INVENTORY]`: whether a cluster is fit for training, and why not."""

import argparse
from typing import Any

from ftcluster.ansible.options import (
    CONNECTION,
    add_inventories,
    add_options,
    ask_passwords,
    inventories_of,
    passed_on,
)
from ftcluster.cli.arguments import add_accept_new_host_keys, add_output, print_result
from ftcluster.cli.setup import find_inventories
from ftcluster.cluster.saved import recall, recall_of
from ftcluster.progress.view import make_view
from ftcluster.provision.check import collect
from ftcluster.provision.check_report import document
from ftcluster.provision.check_text import lines
from ftcluster.provision.host_history import compared, keep, read_history

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
    given = inventories_of(options)
    arguments = passed_on(vars(options))
    inventories = find_inventories(given) if given else recall().inventories
    before = recall_of(inventories)
    if before:  # connect as setup did
        arguments = (*before.options, *arguments)
    view = make_view(options.verbose)
    with ask_passwords(vars(options)) as passwords:
        reach = (*arguments, *passwords)
        found = document(collect(inventories, reach, view, options.accept_new_host_keys))
    found = compared(found, read_history(found["inventory"]))
    keep(found)
    print_result(options, found, "\n".join(lines(found)))
    return 0 if found["state"] == "fit" and not (options.strict and found["warnings"]) else 1
