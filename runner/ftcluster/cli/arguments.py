"""Arguments that several commands have, and the output of their results."""

import argparse
import json
from collections.abc import Callable
from typing import Any

from ftcluster.text.terminal import print_lines
from ftcluster_common.launch import GRACE_SECONDS
from ftcluster_common.timeouts import DEFAULT_SECONDS

MIN_TIMEOUT = 4  # seconds: a sign of life comes every second


def at_least(least: int) -> Callable[[str], int]:
    """The type of an argument that is a whole number."""

    def number(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            limit = f" of at least {least}" if least else ""
            raise argparse.ArgumentTypeError(f"'{text}' is not a whole number{limit}")
        return int(text)

    return number


def not_empty(text: str) -> str:
    """The type of an argument whose value may have come from a variable that is not set."""
    if not text.strip():
        raise argparse.ArgumentTypeError("the value is missing")
    return text


def add_output(
    parser: argparse.ArgumentParser, verbose: str = "print one line per task and host"
) -> None:
    """Add --json, and --verbose with its help unless that is empty."""
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    if verbose:
        parser.add_argument("-v", "--verbose", action="store_true", help=verbose)


def add_launch(parser: argparse.ArgumentParser) -> None:
    """Add --nodes, --spares and --ranks-per-host."""
    group = parser.add_argument_group("hosts and ranks")
    group.add_argument("--nodes", type=at_least(1), metavar="N", help="use only the first N hosts")
    group.add_argument(
        "--spares",
        type=at_least(0),
        default=0,
        metavar="N",
        help="prepare the N hosts after those of --nodes, too; a restart uses them in place of "
        "lost hosts",
    )
    group.add_argument(
        "--ranks-per-host",
        type=at_least(1),
        metavar="N",
        help="start N ranks on each host (default: the plan decides, mostly one a NUMA node)",
    )


def add_detach(parser: argparse.ArgumentParser) -> None:
    """Add --detach."""
    parser.add_argument(
        "--detach", action="store_true", help="launch it, print its id and leave it running"
    )


def add_restarts(parser: argparse.ArgumentParser, default: int) -> None:
    """Add --timeout, --min-nodes, and --max-restarts with its default."""
    group = parser.add_argument_group("faults and restarts")
    group.add_argument(
        "--timeout",
        type=at_least(MIN_TIMEOUT),
        default=DEFAULT_SECONDS,
        metavar="SECONDS",
        dest="timeout_seconds",
        help="a rank or host without a sign of life for so long is lost; all other time-outs "
        f"follow from it (default: {DEFAULT_SECONDS:g})",
    )
    group.add_argument(
        "--max-restarts",
        type=at_least(0),
        default=default,
        metavar="N",
        help="start the ranks again at most N times after one was killed, stopped or hung, or a "
        f"host was lost and is back (default: {default})",
    )
    group.add_argument(
        "--min-nodes",
        type=at_least(1),
        default=0,
        metavar="N",
        help="restart without lost hosts as long as N hosts are left; without it a restart waits "
        "for them, 12 times --timeout",
    )


def add_grace(parser: argparse.ArgumentParser) -> None:
    """Add --grace-seconds."""
    parser.add_argument(
        "--grace-seconds",
        type=at_least(1),
        default=GRACE_SECONDS,
        metavar="N",
        help="how long the ranks may take for their last checkpoint when the training is stopped "
        f"(default: {GRACE_SECONDS:g})",
    )


def add_sharing(parser: argparse.ArgumentParser) -> None:
    """Add --wait and --share-hosts."""
    either = parser.add_mutually_exclusive_group()
    either.add_argument(
        "--wait",
        action="store_true",
        help="wait for the end of a run that uses the hosts; without it the new one is refused",
    )
    either.add_argument(
        "--share-hosts", action="store_true", help="start it beside a run that uses the hosts"
    )


def launch_options(options: argparse.Namespace) -> dict[str, Any]:
    """What `add_restarts` and `add_sharing` have added, as fields of a Launch."""
    names = ("max_restarts", "min_nodes", "wait", "share_hosts", "timeout_seconds")
    return {name: getattr(options, name) for name in names}


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


def print_result(options: argparse.Namespace, document: object, text: str) -> None:
    """Print the result of a command, as JSON or as text that fits a terminal."""
    if options.json:
        print(json.dumps(document))
    else:
        print_lines(text.split("\n"))


def print_detached(options: argparse.Namespace, run: str) -> None:
    """Print the id of a run that continues without this command."""
    print_result(options, {"run": run, "state": "running"}, run)
