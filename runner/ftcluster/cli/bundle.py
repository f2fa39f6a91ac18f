"""`ftcluster bundle`: writes the packages of a stack into one file, for offline clusters."""

import argparse
from typing import Any

from ftcluster.cli.arguments import add_allowances, add_output
from ftcluster.cli.output import print_result
from ftcluster.errors import UsageError
from ftcluster.operations.setup.bundle import DEFAULT_PYTHON, OLDEST_GLIBC, BundleRequest, bundle


def add_parser(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "bundle",
        help="write a stack into one file, for clusters without internet access",
        description="Downloads the packages of a stack and writes them into one file for "
        "`ftcluster setup --bundle FILE`.",
        usage="ftcluster bundle [--stack NAME] [-o FILE] [options]",
    )
    parser.add_argument(
        "--stack",
        metavar="NAME",
        default="",
        help="stack to download (default: the default stack)",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        default="",
        help="file to write (default: NAME-pyVERSION.ftbundle)",
    )
    parser.add_argument(
        "--python", metavar="X.Y", default=DEFAULT_PYTHON,
        help=f"Python version of the hosts (default: {DEFAULT_PYTHON})",
    )  # fmt: skip
    parser.add_argument(
        "--glibc", metavar="X.Y", default=OLDEST_GLIBC,
        help=f"glibc version of the oldest host (default: {OLDEST_GLIBC})",
    )  # fmt: skip
    parser.add_argument(
        "--index-url",
        metavar="URL",
        default="",
        help="package index to download from (default: as pip is configured)",
    )
    parser.add_argument(
        "--find-links",
        metavar="DIR",
        action="append",
        default=[],
        help="a folder with more wheels that pip may use; may be repeated",
    )
    add_allowances(parser)
    add_output(parser, verbose="")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the command and return the exit code."""
    if options.words:
        raise UsageError(f"bundle takes only options, got {', '.join(options.words)}")
    names = (
        "stack", "output", "python", "glibc", "index_url", "allow_yanked", "allow_unverified",
    )  # fmt: skip
    settings = {name: getattr(options, name) for name in names}
    print_result(options, bundle(BundleRequest(**settings, find_links=tuple(options.find_links))))
    return 0
