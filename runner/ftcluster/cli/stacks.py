"""`ftcluster stacks [NAME]`: lists stacks and finds stacks that meet requirements."""

import argparse
from typing import Any

from ftcluster.cli.arguments import add_output
from ftcluster.cli.output import print_result
from ftcluster.errors import UsageError
from ftcluster.operations.setup.stacks import CCL, PARTS, stacks

NONE = "none"


def add_parser(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "stacks",
        help="list stacks, or find stacks with certain versions",
        description="Lists the stacks (sets of matching versions), shows a stack with all its "
        "packages, or finds stacks with the requested versions. The exit code is 1 if there is no "
        "such stack. 2.13 also matches 2.13.1; `latest` is the highest version.",
        usage="ftcluster stacks [NAME] [options]",
    )
    parser.add_argument("words", nargs="*", metavar="NAME", help="a stack")
    for option in ("--torch", "--transformers", "--accelerate"):
        parser.add_argument(
            option, metavar="VERSION", help=f"only stacks with this version of {option[2:]}"
        )
    for option, label in (("--ipex", "IPEX"), ("--ccl", CCL)):
        parser.add_argument(
            option,
            nargs="?",
            const=True,
            metavar="VERSION",
            help=f"only stacks with {label}, in this version if you name one; `{NONE}`: only "
            f"stacks without {label}",
        )
    parser.add_argument(
        "--python", metavar="VERSION", help="only stacks for this Python version of the hosts"
    )
    add_output(parser, verbose="")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the command and return the exit code: 1 if no stack meets the requirements."""
    if len(options.words) > 1:
        raise UsageError(f"name one stack at a time, got {', '.join(options.words)}")
    settings = {**vars(options), "stack": options.words[0] if options.words else None}
    required = {part: settings[part] for part in PARTS if settings[part] is not None}
    for part in ("ipex", "ccl"):
        if required.get(part) == NONE:
            required[part] = False
    result, met = stacks(required)
    print_result(options, result)
    return 0 if met else 1
