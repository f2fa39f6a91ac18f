"""`ftcluster teardown INVENTORY`: removes a cluster from its hosts."""

import argparse
from typing import Any

from ftcluster.ansible.inventory import inventory_path
from ftcluster.ansible.options import (
    SETUP,
    add_inventories,
    add_options,
    ask_passwords,
    inventories_of,
    passed_on,
)
from ftcluster.ansible.playbooks import Teardown
from ftcluster.cli.arguments import add_output, print_result
from ftcluster.cluster.saved import forget
from ftcluster.errors import UsageError
from ftcluster.progress.format import duration
from ftcluster.progress.view import make_view
from ftcluster.provision.stages import run_stages
from ftcluster.text.plural import counted

FLAGS = ("--check", "--diff")


def add_parser(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "teardown",
        help="remove a cluster from its hosts",
        description="Removes from the hosts what setup installed. Runs with their models stay; "
        "-e ftcluster_remove_runs=true removes them as well.",
        usage="ftcluster teardown INVENTORY [options]",
    )
    add_inventories(parser, "the cluster's inventory")
    add_output(parser)
    add_options(parser, SETUP, FLAGS)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    given = inventories_of(options)
    if not given:
        raise UsageError("teardown needs the cluster's inventory")
    arguments = passed_on(vars(options), FLAGS)
    paths = tuple(map(inventory_path, given))
    with ask_passwords(vars(options)) as passwords:
        result = run_stages(Teardown(), paths, (*arguments, *passwords), make_view(options.verbose))
    if "--check" not in arguments and "--limit" not in arguments:
        forget(result.inventory.paths)
    changed = sum(host.changed for host in result.progress.hosts.values())
    document = {"state": "done", "inventory": result.inventory.name, "changed": changed,
                "notices": result.progress.notices}  # fmt: skip
    done = f"{changed} changes to make on" if "--check" in arguments else "removed from"
    hosts = counted(len(result.progress.hosts), "host")
    print_result(options, document, f"{done} {hosts}, {duration(result.seconds)}")
    return 0
