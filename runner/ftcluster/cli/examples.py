"""`ftcluster examples [NAME] [--to DIR]`: lists, shows or writes example scripts."""

import argparse
from typing import Any

from ftcluster.cli.arguments import add_output, not_empty
from ftcluster.cli.output import print_result
from ftcluster.errors import UsageError
from ftcluster.operations.plan.examples import examples


def add_parser(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "examples",
        help="list example scripts for run, or write them",
        description="Lists the example scripts, shows one of them, or writes them into a folder. "
        "Most are for `ftcluster run`, which runs them unchanged: Trainer, DDP, Accelerate, "
        "sentence-transformers, TRL, Lightning Fabric, and a GPT from random weights. Three are "
        "for `ftcluster train`: a task and a loss of your own (--task), and a metric of your own "
        "(--metrics). One serves an exported model over HTTP.",
        usage="ftcluster examples [NAME] [--to DIR] [options]",
    )
    parser.add_argument(
        "words", nargs="*", metavar="NAME", help="name of an example (default: all)"
    )
    parser.add_argument("--to", type=not_empty, metavar="DIR", help="write into this folder")
    add_output(parser, verbose="")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the command and return the exit code."""
    if len(options.words) > 1:
        raise UsageError(f"name one example at a time, got {', '.join(options.words)}")
    name = options.words[0] if options.words else ""
    print_result(options, examples(name, options.to or ""))
    return 0
