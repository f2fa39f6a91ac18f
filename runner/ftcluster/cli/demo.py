"""`ftcluster demo`: setup and training on this machine."""

import argparse
from typing import Any

from ftcluster.cli.arguments import add_output, print_result
from ftcluster.cli.setup import setup
from ftcluster.cli.train import prepare_run, result_document, summary
from ftcluster.cluster.saved import recall
from ftcluster.errors import UsageError
from ftcluster.launch.training_run import train
from ftcluster.paths import bundled
from ftcluster.progress.view import make_view

NEXT = """
For a real cluster, write its hosts into inventory.ini, one per line:
  node1 ansible_host=10.0.0.11 ansible_user=ubuntu
then:
  ftcluster setup inventory.ini
  ftcluster train mrpc"""


def add_parser(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "demo",
        help="set up this machine and train on it",
        description="Sets up this machine and fine-tunes a small encoder on it with two ranks.",
    )
    add_output(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    if options.words:
        raise UsageError(f"demo takes no argument, not {' '.join(options.words)}")
    view = make_view(options.verbose)
    setup((bundled("inventory") / "localhost.ini",), (), view)
    prepared = prepare_run([], recall())
    progress = train(prepared, view)
    text = f"{summary(progress, prepared)}\n{NEXT}"
    print_result(options, result_document(progress, prepared), text)
    return 0
