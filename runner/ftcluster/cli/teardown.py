"""`ftcluster teardown INVENTORY`: removes what setup left on the hosts."""

import argparse
import json
from pathlib import Path
from typing import Any

from ftcluster.ansible.options import (
    SETUP,
    add_inventories,
    add_options,
    asked,
    inventories_of,
    passed_on,
)
from ftcluster.cluster.saved import forget
from ftcluster.errors import UsageError
from ftcluster.progress.format import duration
from ftcluster.progress.view import make_view
from ftcluster.provision.stages import run_stages

FLAGS = ("--check", "--diff")


def add_parser(verbs: Any) -> None:
    """Add the verb to the command line."""
    parser = verbs.add_parser(
        "teardown",
        help="remove from the hosts what setup left there",
        description="Removes what setup left on the hosts, and only that. Runs with their models "
        "stay; -e ftcluster_remove_runs=true removes them as well.",
        usage="ftcluster teardown INVENTORY [options]",
    )
    add_inventories(parser, "the cluster's inventory")
    parser.add_argument("--json", action="store_true", help="the result as one JSON document")
    parser.add_argument("-v", "--verbose", action="store_true", help="a line a task and host")
    add_options(parser, SETUP, FLAGS)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the verb; returns the exit code."""
    given = inventories_of(options)
    if not given:
        raise UsageError("name the inventory whose cluster shall be removed")
    arguments = passed_on(vars(options), FLAGS)
    paths = tuple(map(Path, given))
    with asked(vars(options)) as passwords:
        result = run_stages("teardown", paths, (*arguments, *passwords), make_view(options.verbose))
    if "--check" not in arguments and "--limit" not in arguments:
        forget(result.inventory.paths)
    changed = sum(host.changed for host in result.progress.hosts.values())
    if options.json:
        document = {"state": "done", "inventory": result.inventory.name, "changed": changed,
                    "notices": result.progress.notices}  # fmt: skip
        print(json.dumps(document))
    else:
        count = len(result.progress.hosts)
        done = f"{changed} changes to make on" if "--check" in arguments else "removed from"
        print(f"{done} {count} host{'s' * (count != 1)}, {duration(result.seconds)}")
    return 0
