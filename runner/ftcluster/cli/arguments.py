"""Arguments that several commands share."""

import argparse
from collections.abc import Callable


def at_least(least: int) -> Callable[[str], int]:
    """Return an argparse type for whole numbers of at least `least`."""

    def number(text: str) -> int:
        if not (text.isascii() and text.isdecimal()) or int(text) < least:
            limit = f" of at least {least}" if least else ""
            raise argparse.ArgumentTypeError(f"'{text}' is not a whole number{limit}")
        return int(text)

    return number


def not_empty(text: str) -> str:
    """Refuse an empty argument, such as the value of an unset shell variable."""
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
        help="prefix of the run's id, shown in ps, reports and trackers (default: name of the "
        "recipe or script)",
    )
    parser.add_argument(
        "--tag",
        action="append",
        default=[],
        dest="tags",
        metavar="NAME=VALUE",
        help="label that ps, reports and trackers show with the run",
    )
    parser.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="NAME[=VALUE]",
        help="set an environment variable for the ranks; without =VALUE, the ranks get the value "
        "that the variable has here, and no record, argument or log contains this value",
    )


def add_output(
    parser: argparse.ArgumentParser, verbose: str = "print one line per task and host"
) -> None:
    """Add --json; also add --verbose unless its help text `verbose` is empty."""
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
        help="also show the plan's shell commands as they would run on the head",
    )


def add_allowances(parser: argparse.ArgumentParser) -> None:
    """Add --allow-yanked and --allow-unverified."""
    parser.add_argument(
        "--allow-yanked", action="store_true", help="accept packages whose release was yanked"
    )
    parser.add_argument(
        "--allow-unverified", action="store_true", help="accept packages without a hash in the lock"
    )


def add_accept_new_host_keys(parser: argparse.ArgumentParser) -> None:
    """Add --accept-new-host-keys."""
    parser.add_argument(
        "--accept-new-host-keys",
        action="store_true",
        help="accept and store the SSH keys of new hosts; a changed key is always refused",
    )
