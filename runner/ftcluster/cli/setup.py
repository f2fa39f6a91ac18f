"""`ftcluster setup [INVENTORY]`: turns hosts into a cluster."""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ftcluster.ansible.inventory import LOCALHOST, inventory_path
from ftcluster.ansible.options import (
    SETUP,
    add_inventories,
    add_options,
    ask_passwords,
    inventories_of,
    passed_on,
    remembered,
)
from ftcluster.ansible.playbooks import Rollback, Setup
from ftcluster.ansible.settings import inventory_of_ansible
from ftcluster.cli.arguments import (
    add_accept_new_host_keys,
    add_allowances,
    add_output,
    print_result,
)
from ftcluster.cluster.facts import ClusterFacts
from ftcluster.cluster.saved import Cluster, NoCluster, change, damage, recall, recall_of
from ftcluster.errors import UsageError
from ftcluster.progress.format import duration
from ftcluster.progress.view import View, make_view
from ftcluster.provision.stages import StagesResult, run_stages
from ftcluster.stacks.catalog import find_stack, load_stacks
from ftcluster.text.plural import counted

FLAGS = ("--check", "--diff")


def add_parser(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "setup",
        help="turn the hosts of an inventory into a cluster",
        description="Turns the hosts of an inventory into a cluster, in the stages preflight, "
        "system, stack, mesh and verify. A second run changes nothing.",
        usage="ftcluster setup [INVENTORY] [options]",
    )
    add_inventories(
        parser,
        "any Ansible inventory, or 'localhost'; default: the cluster that was set up last, else "
        "this machine",
    )
    parser.add_argument(
        "--stack",
        metavar="NAME",
        help="one of `ftcluster stacks`, or 'auto' for the first that the hosts support; default: "
        "torch_stack_name of the inventory, else that of the cluster, else `native`",
    )
    parser.add_argument(
        "--bundle",
        metavar="FILE",
        help="install from a file of `ftcluster bundle`, without downloads",
    )
    add_allowances(parser)
    parser.add_argument(
        "--downgrade",
        action="store_true",
        help="install this ftcluster's package on the hosts although they have a newer one",
    )
    parser.add_argument(
        "--prune",
        action="store_true",
        help="remove all stacks but the current and the previous one, and scripts' own packages",
    )
    parser.add_argument(
        "--rollback", action="store_true", help="only switch all hosts back to the previous stack"
    )
    add_accept_new_host_keys(parser)
    add_output(parser)
    add_options(parser, SETUP, FLAGS)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    given = inventories_of(options)
    if options.rollback and (options.stack or options.bundle):
        raise UsageError("--rollback cannot be used with --stack or --bundle")
    inventories = find_inventories(given)
    arguments = passed_on(vars(options), FLAGS)
    before = recall_of(inventories)
    if before and not given:  # connect as the last time
        arguments = (*before.options, *arguments)
    playbook = Setup() if options.rollback else requested_setup(options)
    view, accept_new = make_view(options.verbose), options.accept_new_host_keys
    if damaged := damage():
        view.say(f"{damaged}; what can be known again is read from the hosts")
    with ask_passwords(vars(options)) as passwords:
        if options.rollback:
            reach = (*arguments, *passwords)
            result = run_stages(Rollback(), inventories, reach, view, accept_new=accept_new)
            if "--check" not in arguments:
                change(inventories, lambda saved: saved and _with_stack(saved, result))
        else:
            result = setup(inventories, arguments, view, passwords, playbook, accept_new)
    text = "\n".join([*result.table, summary(result, options)])
    print_result(options, result_document(result), text)
    return 0


def requested_setup(options: argparse.Namespace) -> Setup:
    """The playbook for the requested stack.

    Raises:
        UsageError: there is no such stack, or no such bundle.
    """
    if options.stack and options.stack != "auto":
        find_stack(options.stack, load_stacks())
    bundle = Path(options.bundle).absolute() if options.bundle else None
    if bundle and not bundle.is_file():
        raise UsageError(f"bundle {options.bundle} does not exist")
    return Setup(
        torch_stack_name=options.stack or None,
        torch_stack_bundle=str(bundle) if bundle else None,
        # what is not given here may be in the inventory
        torch_stack_allow_yanked=options.allow_yanked or None,
        torch_stack_allow_unverified=options.allow_unverified or None,
        node_agent_downgrade=options.downgrade or None,
        ftcluster_prune=options.prune or None,
    )


def find_inventories(given: Sequence[str]) -> tuple[Path, ...]:
    """The given inventories; the saved cluster's or this machine's if there are none.

    Raises:
        UsageError: none is given or saved, and Ansible is configured to take another one.
        FtclusterError: none is given, and the saved cluster cannot be read.
    """
    if given:
        return tuple(map(inventory_path, given))
    try:
        return recall().inventories
    except NoCluster:
        theirs, where = inventory_of_ansible()
        if theirs:
            raise UsageError(
                f"which inventory? {where} names {theirs}",
                f"ftcluster setup {theirs}, or for this machine: ftcluster setup {LOCALHOST}",
            ) from None
        return (inventory_path(LOCALHOST),)


def setup(
    inventories: Sequence[Path],
    options: tuple[str, ...],
    view: View,
    passwords: tuple[str, ...] = (),
    playbook: Setup = Setup(),  # noqa: B008 - it is frozen
    accept_new: bool = False,
) -> StagesResult:
    """Run the playbook `setup` and save the cluster.

    Args:
        passwords: further arguments, which are not saved.
        playbook: with the variables that the stack is chosen by.
        accept_new: see run_stages.

    Raises:
        FtclusterError: a host failed or does not answer; names each with its reason.
        Interrupted: the user stopped it.
    """
    reach = (*options, *passwords)
    result = run_stages(playbook, inventories, reach, view, accept_new=accept_new)
    if "--check" not in options:
        _save(result, options)
    return result


def _with_stack(cluster: Cluster, result: StagesResult) -> Cluster:
    """The cluster with another stack on the hosts of the run."""
    hosts = tuple(
        replace(host, stack=result.stack) if host.name in result.inventory.hosts else host
        for host in cluster.facts.hosts
    )
    return replace(cluster, facts=replace(cluster.facts, hosts=hosts))


def _save(result: StagesResult, options: tuple[str, ...]) -> None:
    """Save the cluster, with the hosts that --limit or --tags left out as they were."""
    if not result.table:
        return  # not verified, so not for training
    inventory = result.inventory

    def found(before: Cluster | None) -> Cluster:
        known = {name: replace(host, stack=result.stack) for name, host in result.facts.items()}
        if before:
            known = {host.name: host for host in before.facts.hosts} | known
        hosts = tuple(known[name] for name in inventory.cluster if name in known)
        kept, pattern = remembered(options), inventory.pattern
        cluster = Cluster(inventory.paths, ClusterFacts(hosts), kept, pattern)
        # --limit may leave the head out
        record = before.record if before else ""
        return cluster.with_record(result.records.get(cluster.facts.head.name, record))

    change(inventory.paths, found)


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
    """The last line of the text."""
    changed = sum(host.changed for host in result.progress.hosts.values())
    hosts, changes = counted(len(result.progress.hosts), "host"), counted(changed, "change")
    if vars(options)["--check"]:
        return f"{hosts} checked, {changes} to make, {duration(result.seconds)}"
    if options.rollback:
        return f"{hosts} back on the previous stack, {duration(result.seconds)}"
    if not result.table:  # --tags without verify
        return f"{hosts}: the chosen stages are done, {changes}, {duration(result.seconds)}"
    return f"{hosts} ready, {changes}, {duration(result.seconds)}"
