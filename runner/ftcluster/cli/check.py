"""`ftcluster check [INVENTORY]`: whether a cluster is fit, and why not."""

import argparse
import json
from typing import Any

from ftcluster.ansible.options import (
    CONNECTION,
    add_inventories,
    add_options,
    asked,
    inventories_of,
    passed_on,
)
from ftcluster.cli.setup import find_inventories
from ftcluster.cluster.saved import recall, recall_of
from ftcluster.progress.view import make_view
from ftcluster.provision.check import collect
from ftcluster.provision.check_report import document
from ftcluster.provision.check_text import lines

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
    add_inventories(
        parser, "any Ansible inventory, or 'localhost'; left out, the cluster that was set up last"
    )
    parser.add_argument("--json", action="store_true", help="the result as one JSON document")
    parser.add_argument("-v", "--verbose", action="store_true", help="a line a task and host")
    add_options(parser, OPTIONS)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the verb; returns the exit code."""
    given = inventories_of(options)
    arguments = passed_on(vars(options))
    inventories = find_inventories(given) if given else recall().inventories
    before = recall_of(inventories)
    if before:  # what was set up is reached the same way
        arguments = (*before.options, *arguments)
    view = make_view(options.verbose)
    with asked(vars(options)) as passwords:
        found = document(collect(inventories, (*arguments, *passwords), view))
    if options.json:
        print(json.dumps(found))
    else:
        for line in lines(found):
            print(line)
    return 0 if found["state"] == "fit" else 1
