"""Arguments of commands that launch ranks: hosts, ranks, restarts and sharing."""

import argparse
import os

from ftcluster.cli.arguments import at_least, not_empty
from ftcluster.cli.connection import command_line
from ftcluster.operations.train.prepare import LaunchOptions
from ftcluster_common.protocol.launch import GRACE_SECONDS
from ftcluster_common.protocol.timeouts import DEFAULT_SECONDS

# this machine's variables with defaults for --notify and --webhook
NOTIFY_VARIABLE, WEBHOOK_VARIABLE = "FTCLUSTER_NOTIFY", "FTCLUSTER_WEBHOOK"
MIN_TIMEOUT = 4  # seconds; heartbeats come every second


def add_launch(parser: argparse.ArgumentParser) -> None:
    """Add --hosts, --nodes, --spares and --ranks-per-host."""
    group = parser.add_argument_group("hosts and ranks")
    add_hosts(group)
    group.add_argument("--nodes", type=at_least(1), metavar="N", help="use only the first N hosts")
    group.add_argument(
        "--spares",
        type=at_least(0),
        metavar="N",
        help="also prepare the N hosts that follow the hosts of --nodes; a restart uses them in "
        "place of lost hosts",
    )
    group.add_argument(
        "--ranks-per-host",
        type=at_least(1),
        metavar="N",
        help="start N ranks on each host (default: the plan decides, usually one per NUMA node)",
    )


def add_hosts(parser: "argparse.ArgumentParser | argparse._ArgumentGroup") -> None:
    """Add --hosts."""
    parser.add_argument(
        "--hosts",
        type=host_names,
        default=(),
        metavar="NAMES",
        help="use exactly these hosts of the cluster, such as node1,node2; the head of the run is "
        "the cluster's head if you name it, or else the first host you name (default: all hosts)",
    )


def host_names(text: str) -> tuple[str, ...]:
    """Return the names in a comma-separated list; an argparse type."""
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of hosts such as node1,node2")
    return names


def add_detach(parser: argparse.ArgumentParser) -> None:
    """Add --detach."""
    parser.add_argument(
        "--detach", action="store_true", help="launch the run, print its id and return"
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
        help="a rank or host counts as lost after this many seconds without a heartbeat; all other "
        f"timeouts are derived from this value (default: {DEFAULT_SECONDS:g})",
    )
    group.add_argument(
        "--max-restarts",
        type=at_least(0),
        default=default,
        metavar="N",
        help="restart the ranks at most N times after a rank was killed, stopped or hung, or a "
        f"host was lost and has come back (default: {default})",
    )
    group.add_argument(
        "--min-nodes",
        type=at_least(1),
        default=0,
        metavar="N",
        help="restart without lost hosts if at least N hosts remain; by default a restart waits "
        "for lost hosts, up to 12 times --timeout",
    )


def add_grace(parser: argparse.ArgumentParser) -> None:
    """Add --grace-seconds."""
    parser.add_argument(
        "--grace-seconds",
        type=at_least(1),
        default=GRACE_SECONDS,
        metavar="N",
        help="seconds that the ranks get to save a last checkpoint when the run is stopped "
        f"(default: {GRACE_SECONDS:g})",
    )


def add_sharing(parser: argparse.ArgumentParser) -> None:
    """Add --queue, which is also called --wait, and --share-hosts."""
    either = parser.add_mutually_exclusive_group()
    either.add_argument(
        "--queue",
        "--wait",
        dest="wait",
        action="store_true",
        help="if other runs use the hosts, wait in the queue behind the runs that were queued "
        "earlier; by default the new run is refused",
    )
    either.add_argument(
        "--share-hosts", action="store_true", help="start even if another run uses the hosts"
    )


def launch_options(options: argparse.Namespace) -> LaunchOptions:
    """Return the launch options; an option that the command lacks gets its default."""
    names = (
        "max_restarts", "min_nodes", "wait", "share_hosts", "timeout_seconds", "hang_seconds",
        "grace_seconds",
    )  # fmt: skip
    settings = {name: getattr(options, name) for name in names if hasattr(options, name)}
    env, tags = (tuple(getattr(options, name, ())) for name in ("env", "tags"))
    if hasattr(options, "notify"):
        settings["notify"] = options.notify or os.environ.get(NOTIFY_VARIABLE, "")
        settings["webhook"] = options.webhook or os.environ.get(WEBHOOK_VARIABLE, "")
    return LaunchOptions(**settings, env=env, tags=tags, command=command_line())


def add_notify(parser: argparse.ArgumentParser) -> None:
    """Add --notify and --webhook."""
    _add_notifications(
        parser,
        "when the run is done, failed, stopped or waiting for hosts, the head starts this command, "
        "without a shell, as the account that trains; stdin is the run's state as JSON. This works "
        "even if this machine is off, but not before the launch or once the head is lost",
        "in the same cases, the head also posts the JSON, with a field `text` for chats, to the "
        "address in this file; no record, argument or log contains the address",
    )


def add_sweep_notify(parser: argparse.ArgumentParser) -> None:
    """Add --notify and --webhook of a sweep; this machine, not the head, sends the notification."""
    _add_notifications(
        parser,
        "when the whole sweep is done or has failed, start this command on this machine, without a "
        "shell; stdin is the sweep's result as JSON",
        "then also post the JSON, with a field `text` for chats, to the address in this file",
    )


def _add_notifications(parser: argparse.ArgumentParser, notify: str, webhook: str) -> None:
    """Add --notify and --webhook with these help texts and the default of their variables."""
    group = parser.add_argument_group("notifications")
    for option, placeholder, text, variable in (
        ("--notify", "COMMAND", notify, NOTIFY_VARIABLE),
        ("--webhook", "FILE", webhook, WEBHOOK_VARIABLE),
    ):
        group.add_argument(
            option, type=not_empty, metavar=placeholder,
            help=f"{text} (default: the variable {variable})",
        )  # fmt: skip


def add_hub_token(parser: argparse.ArgumentParser) -> None:
    """Add --hf-token."""
    parser.add_argument(
        "--hf-token",
        action="store_true",
        help="let the hosts use your Hugging Face Hub token (HF_TOKEN, or the token of `hf auth "
        "login`) while they need it",
    )
