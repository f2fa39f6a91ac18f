"""`ftcluster setup [INVENTORY]`: all stages of setting a cluster up."""

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ftcluster.ansible.options import (
    SETUP,
    add_inventories,
    add_options,
    asked,
    inventories_of,
    passed_on,
    remembered,
)
from ftcluster.cluster.facts import ClusterFacts
from ftcluster.cluster.saved import Cluster, recall, recall_of, remember
from ftcluster.errors import FtclusterError, UsageError
from ftcluster.paths import bundled
from ftcluster.progress.format import duration
from ftcluster.progress.view import View, make_view
from ftcluster.provision.stages import StagesResult, run_stages
from ftcluster.stacks.catalog import find_stack, load_stacks

FLAGS = ("--check", "--diff")


def add_parser(verbs: Any) -> None:
    """Add the verb to the command line."""
    parser = verbs.add_parser(
        "setup",
        help="make a cluster of the hosts of an inventory",
        description="Makes a cluster of the hosts of an inventory: preflight, system, stack, mesh, "
        "verify. A second run changes nothing.",
        usage="ftcluster setup [INVENTORY] [options]",
    )
    add_inventories(
        parser,
        "any Ansible inventory, or 'localhost'; left out, the cluster that was set up last, "
        "else this machine",
    )
    parser.add_argument(
        "--stack",
        metavar="NAME",
        help="one of `ftcluster stacks`, or 'auto' for the first that fits the hosts; left out, "
        "the one that the cluster has, else the default",
    )
    parser.add_argument(
        "--bundle",
        metavar="FILE",
        help="what `ftcluster bundle` wrote; nothing is downloaded then",
    )
    parser.add_argument(
        "--allow-yanked",
        action="store_true",
        help="also a stack with releases that their makers took back",
    )
    parser.add_argument(
        "--allow-unverified",
        action="store_true",
        help="also a stack with packages of which no lock has a hash",
    )
    parser.add_argument(
        "--prune",
        action="store_true",
        help="remove stacks that are neither the current nor the former one",
    )
    parser.add_argument(
        "--rollback", action="store_true", help="only use the former stack again, on all hosts"
    )
    parser.add_argument("--json", action="store_true", help="the result as one JSON document")
    parser.add_argument("-v", "--verbose", action="store_true", help="a line a task and host")
    add_options(parser, SETUP, FLAGS)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the verb; returns the exit code."""
    given = inventories_of(options)
    if options.rollback and (options.stack or options.bundle):
        raise UsageError("--rollback goes to the former stack; leave --stack and --bundle out")
    inventories = find_inventories(given)
    arguments = passed_on(vars(options), FLAGS)
    before = recall_of(inventories)
    if before and not given:  # the same cluster again is reached the same way
        arguments = (*before.options, *arguments)
    variables = {} if options.rollback else stack_variables(options, before)
    view = make_view(options.verbose)
    with asked(vars(options)) as passwords:
        if options.rollback:
            result = run_stages("rollback", inventories, (*arguments, *passwords), view)
            if before and "--check" not in arguments:
                remember(_with_stack(before, result))
        else:
            result = setup(inventories, arguments, view, passwords, variables)
    if options.json:
        print(json.dumps(result_document(result)))
        return 0
    for line in result.table:
        print(line)
    print(summary(result, options))
    return 0


def stack_variables(options: argparse.Namespace, before: Cluster | None) -> dict[str, str | bool]:
    """The stack that the user means, as variables of the playbook.

    Args:
        options: of the command line.
        before: the same cluster as it is remembered.

    Raises:
        UsageError: there is no such stack, or no such bundle.
    """
    found: dict[str, str | bool] = {}
    if options.stack:
        stacks = load_stacks()
        if options.stack != "auto":
            find_stack(options.stack, stacks)
        found["torch_stack_name"] = options.stack
    elif before and not options.bundle:
        found["torch_stack_name"] = before.facts.head.stack
    if options.bundle:
        path = Path(options.bundle).absolute()
        if not path.is_file():
            raise UsageError(f"the bundle {options.bundle} does not exist")
        found["torch_stack_bundle"] = str(path)
    if options.allow_yanked:
        found["torch_stack_allow_yanked"] = True
    if options.allow_unverified:
        found["torch_stack_allow_unverified"] = True
    if options.prune:
        found["ftcluster_prune"] = True
    return found


def find_inventories(given: Sequence[str]) -> tuple[Path, ...]:
    """The inventories that the user means."""
    if given:
        return tuple(map(_find_inventory, given))
    try:
        return recall().inventories
    except FtclusterError:
        return (bundled("inventory") / "localhost.ini",)


def _find_inventory(given: str) -> Path:
    path = Path(given)
    ours = bundled("inventory") / f"{path.stem}.ini"
    if not path.exists() and given == "localhost" and ours.exists():
        return ours
    return path


def setup(
    inventories: Sequence[Path],
    options: tuple[str, ...],
    view: View,
    passwords: tuple[str, ...] = (),
    variables: Mapping[str, str | bool] | None = None,
) -> StagesResult:
    """Run the playbook `setup` and remember the cluster.

    Args:
        inventories: the hosts are in these.
        options: arguments of ansible-playbook.
        view: where the progress is shown.
        passwords: further arguments that are not remembered.
        variables: see `stack_variables`.

    Raises:
        FtclusterError: a host failed or does not answer; names each with its reason.
        Interrupted: the user stopped it.
    """
    result = run_stages("setup", inventories, (*options, *passwords), view, variables)
    if "--check" not in options:
        _remember(result, options)
    return result


def _with_stack(cluster: Cluster, result: StagesResult) -> Cluster:
    """The same cluster, those hosts that were asked on another stack."""
    hosts = tuple(
        replace(host, stack=result.stack) if host.name in result.inventory.hosts else host
        for host in cluster.facts.hosts
    )
    return replace(cluster, facts=ClusterFacts(hosts))


def _remember(result: StagesResult, options: tuple[str, ...]) -> None:
    """Keep what is known of the whole cluster, also where --limit or --tags left hosts out."""
    if not result.table:
        return  # not proved: what is remembered may be trained on
    inventory = result.inventory
    known = {name: replace(host, stack=result.stack) for name, host in result.facts.items()}
    before = recall_of(inventory.paths)
    if before:
        known = {host.name: host for host in before.facts.hosts} | known
    hosts = tuple(known[name] for name in inventory.cluster if name in known)
    remember(Cluster(inventory.paths, ClusterFacts(hosts), remembered(options), inventory.pattern))


def result_document(result: StagesResult) -> dict[str, Any]:
    """The result of `setup --json`."""
    return {
        "state": "done",
        "inventory": result.inventory.name,
        "head": result.inventory.head,
        "stack": result.stack,
        "stack_why": result.stack_why,
        "hosts": {
            name: {"ok": host.ok + host.changed, "changed": host.changed}
            for name, host in result.progress.hosts.items()
        },
        "notices": result.progress.notices,
        "table": result.table,
        "seconds": round(result.seconds, 1),
    }


def summary(result: StagesResult, options: argparse.Namespace) -> str:
    """The last line for a person."""
    changed = sum(host.changed for host in result.progress.hosts.values())
    count = len(result.progress.hosts)
    hosts, changes = f"{count} host{'s' * (count != 1)}", f"{changed} change{'s' * (changed != 1)}"
    if vars(options)["--check"]:
        return f"{hosts} checked, {changes} to make, {duration(result.seconds)}"
    if options.rollback:
        return f"{hosts} back on the former stack, {duration(result.seconds)}"
    return f"{hosts} ready, {changes}, {duration(result.seconds)}"
