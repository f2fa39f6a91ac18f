"""Arguments that several commands have, and the output of their results."""

import argparse
from collections.abc import Callable


def at_least(least: int) -> Callable[[str], int]:
    """The type of an argument that is a whole number."""

    def number(text: str) -> int:
        if not (text.isascii() and text.isdecimal()) or int(text) < least:
            limit = f" of at least {least}" if least else ""
            raise argparse.ArgumentTypeError(f"'{text}' is not a whole number{limit}")
        return int(text)

    return number


def not_empty(text: str) -> str:
    """The type of an argument whose value may have come from a variable that is not set."""
    if not text.strip():
        raise argparse.ArgumentTypeError("the value is missing")
    return text


def add_name(parser: argparse.ArgumentParser) -> None:
    """Add --name, --tag and --env."""
    parser.add_argument(
        "--name",
        dest="run_name",
        type=not_empty,
        metavar="NAME",
        help="what the run's id begins with, in ps, reports and trackers (default: the recipe's "
        "name, or the script's)",
    )
    parser.add_argument(
        "--tag",
        action="append",
        default=[],
        dest="tags",
        metavar="NAME=VALUE",
        help="what ps, reports and trackers show beside the run",
    )
    parser.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="NAME[=VALUE]",
        help="set a variable for the ranks; without =VALUE to what it is here, which is kept out "
        "of records, arguments and logs",
    )


def add_output(
    parser: argparse.ArgumentParser, verbose: str = "print one line per task and host"
) -> None:
    """Add --json, and --verbose with its help unless that is empty."""
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    if verbose:
        parser.add_argument("-v", "--verbose", action="store_true", help=verbose)


def add_dry_run(
    parser: argparse.ArgumentParser, meaning: str = "only print what would run, with the reasons"
) -> None:
    """Add --dry-run."""
    parser.add_argument("--dry-run", action="store_true", help=meaning)


def add_commands(parser: argparse.ArgumentParser) -> None:
    """Add --commands."""
    parser.add_argument(
        "--commands",
        action="store_true",
        help="show the plan's shell commands too, as they would run on the head",
    )


def add_allowances(parser: argparse.ArgumentParser) -> None:
    """Add --allow-yanked and --allow-unverified."""
    parser.add_argument(
        "--allow-yanked", action="store_true", help="accept packages whose release was yanked"
    )
    parser.add_argument(
        "--allow-unverified", action="store_true", help="accept packages without a hash in a lock"
    )


def add_accept_new_host_keys(parser: argparse.ArgumentParser) -> None:
    """Add --accept-new-host-keys."""
    parser.add_argument(
        "--accept-new-host-keys",
        action="store_true",
        help="store the keys of hosts that ssh does not know; a changed key is always refused",
    )
