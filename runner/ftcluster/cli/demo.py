"""`ftcluster demo`: the whole job on this machine."""

import argparse
import json
from pathlib import Path
from typing import Any

from ftcluster.cli.setup import setup
from ftcluster.cli.train import DEFAULT_RECIPE, prepare_run, result_document, summary
from ftcluster.errors import UsageError
from ftcluster.launch.training_run import train
from ftcluster.paths import bundled
from ftcluster.progress.svg import save_svg
from ftcluster.progress.view import make_view

NEXT = """
Now a real cluster. Write its hosts into inventory.ini, one a line:
  node1 ansible_host=10.0.0.11 ansible_user=ubuntu
then:
  ftcluster setup inventory.ini
  ftcluster train mrpc"""


def add_parser(verbs: Any) -> None:
    """Add the verb to the command line."""
    parser = verbs.add_parser(
        "demo",
        help="the whole job on this machine",
        description="Sets this machine up and fine-tunes a small encoder with two ranks on it.",
    )
    parser.add_argument("--json", action="store_true", help="the result as one JSON document")
    parser.add_argument("-v", "--verbose", action="store_true", help="a line a task and host")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="save the last picture there")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the verb; returns the exit code."""
    if options.words:
        raise UsageError(f"demo takes no argument, not {' '.join(options.words)}")
    view = make_view(options.verbose)
    ready = setup((bundled("inventory") / "localhost.ini",), (), view)
    prepared = prepare_run(DEFAULT_RECIPE, [])
    progress = train(prepared, view)
    if options.svg:
        save_svg(
            options.svg, "ftcluster demo", ready.progress, progress, summary(progress, prepared)
        )
    if options.json:
        print(json.dumps(result_document(progress)))
    else:
        print(summary(progress, prepared))
        print(NEXT)
    return 0
