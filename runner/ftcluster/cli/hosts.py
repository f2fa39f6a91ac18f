"""`ftcluster hosts`: lists or changes the hosts of the cluster that was set up last."""

import argparse
from collections.abc import Callable
from typing import Any

from ftcluster.cli.ansible_options import add_options
from ftcluster.cli.arguments import add_accept_new_host_keys, add_output
from ftcluster.cli.connection import connected
from ftcluster.cli.help import example_lines
from ftcluster.cli.output import print_result
from ftcluster.errors import UsageError
from ftcluster.operations.connection import CONNECTION
from ftcluster.operations.result import Result
from ftcluster.operations.setup import hosts
from ftcluster.progress.view import View, make_view

OPTIONS = ("--extra-vars", "--forks", *CONNECTION)
Change = Callable[[hosts.HostsRequest, View], Result]


def add_parser(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "hosts",
        help="list, add, remove, drain or return hosts of the cluster",
        description="Without an action, lists the hosts of the cluster that was set up last.",
        usage="ftcluster hosts [add|remove|drain|return] [HOST ...] [options]",
    )
    add_output(parser, verbose="")
    parser.set_defaults(run=show)
    kinds = parser.add_subparsers(metavar="WHAT", required=False, prog="ftcluster hosts")
    for name, change, what, more in (
        ("add", hosts.add, "set up hosts of the inventory and add them to the cluster",
         "Sets up hosts of the inventory and adds them to the cluster. Active runs continue "
         "without the new hosts."),
        ("remove", hosts.remove, "remove hosts from the cluster",
         "Removes hosts from the cluster and from the configuration of the remaining hosts. The "
         "removed hosts may be off. The command fails while a run uses one of the hosts."),
        ("drain", hosts.drain, "keep new runs off hosts",
         "Keeps new runs off the hosts. The hosts stay set up, and active runs on them continue."),
        ("return", hosts.give_back, "let new runs use drained hosts again",
         "Undoes `ftcluster hosts drain`."),
    ):  # fmt: skip
        kind = kinds.add_parser(
            name, help=what, description=more, usage=f"ftcluster hosts {name} HOST ... [options]"
        )
        kind.add_argument("words", nargs="*", metavar="HOST", help="name in the inventory")
        if name == "remove":
            kind.add_argument(
                "--teardown", action="store_true", help="also uninstall what setup has installed"
            )
        if name == "add":
            add_accept_new_host_keys(kind)
        if name == "drain":
            kind.add_argument(
                "--why", default=hosts.NO_REASON, metavar="TEXT", help="reason, shown in plans"
            )
        add_output(kind, verbose="print one line per task and host")
        add_options(kind, OPTIONS)
        kind.set_defaults(run=run, change=change, parser=kind)
        kind.more = example_lines(f"hosts {name}")


def show(options: argparse.Namespace) -> int:
    """List the hosts and return the exit code."""
    if options.words:
        raise UsageError(
            f"hosts has no action '{options.words[0]}'", "use add, remove, drain or return"
        )
    print_result(options, hosts.show())
    return 0


def run(options: argparse.Namespace) -> int:
    """Change the hosts and return the exit code."""
    names = [name for word in options.words for name in word.split(",") if name]
    if not names:
        raise UsageError("name the hosts", options.parser.usage_line())
    extra_options = ("why", "teardown", "accept_new_host_keys")
    more = {name: getattr(options, name) for name in extra_options if hasattr(options, name)}
    with connected(options) as connection:
        request = hosts.HostsRequest(tuple(dict.fromkeys(names)), connection, **more)
        change: Change = options.change
        print_result(options, change(request, make_view(options.verbose)))
    return 0
