"""`ftcluster check [INVENTORY]`: whether a cluster is fit, and why not."""

import argparse
import json
from typing import Any

from ftcluster.check.collect import collect
from ftcluster.check.document import document
from ftcluster.check.text import lines
from ftcluster.cli.ansible_options import CONNECTION, add_options, asked, passed_on
from ftcluster.cli.setup import find_inventory
from ftcluster.cluster import Cluster, recall
from ftcluster.errors import FtclusterError, UsageError
from ftcluster.progress.view import make_view

OPTIONS = ("--limit", "--extra-vars", "--forks", *CONNECTION)


def add_parser(verbs: Any) -> None:
    """Add the verb to the command line."""
    parser = verbs.add_parser(
        "check",
        help="say whether a cluster is fit, and why not",
        description="Looks whether hosts are what training needs, starts a rank on each, compares "
        "what they have and measures how fast they compute and communicate. Changes nothing. Exit "
        "code 0: fit; 1: unfit; 2: wrong usage.",
        usage="ftcluster check [INVENTORY] [options]",
    )
    parser.add_argument(
        "words",
        nargs="*",
        metavar="INVENTORY",
        help="any Ansible inventory, or 'localhost'; left out, the cluster that was set up last",
    )
    parser.add_argument("--json", action="store_true", help="the result as one JSON document")
    parser.add_argument("-v", "--verbose", action="store_true", help="a line a task and host")
    add_options(parser, OPTIONS)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the verb; returns the exit code."""
    if len(options.words) > 1:
        raise UsageError(f"one inventory at a time, not {', '.join(options.words)}")
    arguments = passed_on(vars(options))
    if options.words:
        inventory = find_inventory(*options.words)
        before = _recall_or_none()
        known = before is not None and before.inventory == inventory.absolute()
    else:
        before, known = recall(), True
        inventory = before.inventory
    if before and known:  # what was set up is reached the same way
        arguments = (*before.options, *arguments)
    view = make_view(options.verbose)
    with asked(vars(options)) as passwords:
        found = document(collect(inventory, (*arguments, *passwords), view))
    if options.json:
        print(json.dumps(found))
    else:
        for line in lines(found):
            print(line)
    return 0 if found["state"] == "fit" else 1


def _recall_or_none() -> Cluster | None:
    try:
        return recall()
    except FtclusterError:
        return None
