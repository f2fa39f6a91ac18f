"""`ftcluster demo`: sets up this machine and trains on it."""

import argparse
import json
from typing import Any

from ftcluster.cli.arguments import add_output
from ftcluster.cli.connection import command_line
from ftcluster.errors import UsageError
from ftcluster.operations.connection import Connection, this_machine
from ftcluster.operations.setup.setup import SetupRequest, setup
from ftcluster.operations.train.prepare import LaunchOptions
from ftcluster.operations.train.train import TrainRequest, train
from ftcluster.progress.view import make_view
from ftcluster.text.terminal import print_lines

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
    """Run the command and return the exit code."""
    if options.words:
        raise UsageError(f"demo takes no arguments, got {' '.join(options.words)}")
    view = make_view(options.verbose)
    ready = setup(SetupRequest(this_machine()), view)
    connection = Connection(cluster=ready.cluster)
    launch = LaunchOptions(command=command_line())
    result = train(TrainRequest(connection=connection, launch=launch), view)
    if options.json:
        print(json.dumps(result.document()))
    else:
        print_lines([*result.lines(), *NEXT.split("\n")])
    return 0
