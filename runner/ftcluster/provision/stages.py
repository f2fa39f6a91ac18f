"""Runs playbooks of stages - setup, teardown, rollback - on the hosts of an inventory."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ftcluster.ansible.answers import facts_set, stack_folder
from ftcluster.ansible.host_keys import refused_hosts
from ftcluster.ansible.inventory import HOSTS_VARIABLE, Inventory, pattern_of, read_inventory
from ftcluster.ansible.playbook import Outcome, TaskEvent, run_playbook
from ftcluster.ansible.signals import Interrupts
from ftcluster.cluster.facts import HostFacts, stack_name
from ftcluster.cluster.saved import recall_of
from ftcluster.errors import FtclusterError, Interrupted
from ftcluster.progress.state import SetupProgress
from ftcluster.progress.view import View
from ftcluster.provision.meeting import meet, say_unchecked
from ftcluster.provision.which_hosts import which_hosts

TIME_LIMIT_SECONDS = 3600
UNLOCK_SECONDS = 60


@dataclass
class StagesResult:
    """The result of a playbook of stages.

    Attributes:
        progress: the counts of each host.
        facts: of each host by name, where a stage has gathered them.
        table: the lines of verify's table.
        records: the text of the cluster's record of each host that was looked at; only the head
            has one.
        stack: the name of the stack in use, or "" where no stage has looked.
        stack_why: why this one was chosen.
        locked: whether a host has given this setup its lock.
        set_up: the hosts that have a stack in use.
    """

    inventory: Inventory
    progress: SetupProgress = field(default_factory=SetupProgress)
    facts: dict[str, HostFacts] = field(default_factory=dict)
    table: list[str] = field(default_factory=list)
    records: dict[str, object] = field(default_factory=dict)
    stack: str = ""
    stack_why: str = ""
    seconds: float = 0.0
    locked: bool = False
    set_up: set[str] = field(default_factory=set)

    def add(self, event: TaskEvent) -> None:
        """Add one event of the playbook."""
        if event.action.endswith(".setup_lock") and event.kind == "ok":
            self.locked = True
        found = facts_set(event)
        if "preflight_facts" in found:
            facts = found["preflight_facts"]
            stack = stack_name(facts.get("current") or "")
            known = {**facts, "stack": stack} if stack else facts
            if stack:
                self.set_up.add(event.host)
            self.facts[event.host] = HostFacts.from_dict(known)
            self.records[event.host] = facts.get("record", "")
        if event.action.endswith(".cluster_record") and "record" in event.result:
            self.records[event.host] = event.result["record"]
        if "cluster_hosts" in found:
            self.inventory = self.inventory.in_order(found["cluster_hosts"])
        self.stack_why = found.get("torch_stack_choice", {}).get("why", self.stack_why)
        if event.action.endswith(".stack_link") and "current" in event.result:
            self.stack = stack_name(stack_folder(event))
        self.table = found.get("verify_table", self.table)


def run_stages(
    playbook: str,
    paths: Sequence[Path],
    options: Sequence[str],
    view: View,
    variables: Mapping[str, Any] | None = None,
    unreachable: bool = False,
    accept_new: bool = False,
) -> StagesResult:
    """Run a playbook of stages.

    Args:
        playbook: its name in the collection, which is also what messages call it.
        variables: data for the playbook; -e among the options overrides them.
        unreachable: whether it is enough that some of the hosts answer.
        accept_new: whether keys of hosts that are not known are stored without a question.

    Raises:
        FtclusterError: a host failed or does not answer; names each with its reason.
        Interrupted: the user stopped it.
    """
    inventory, known = address(paths, options, view)
    if inventory.pattern:
        view.say(f"hosts: {inventory.pattern} ({len(inventory.cluster)})")
    say_unchecked(inventory, view)
    variables = {**(variables or {}), **known}
    began = time.monotonic()
    result, outcome = _run(playbook, inventory, variables, options, view)
    refused = refused_hosts(outcome) if outcome.state == "failed" and not unreachable else ()
    if refused and meet(playbook, inventory, refused, options, view, accept_new):
        result, outcome = _run(playbook, inventory, variables, options, view)
    progress = result.progress
    result.seconds = time.monotonic() - began
    if outcome.state == "stopped":
        raise Interrupted(f"stopped: {playbook} is not finished; run it again to resume")
    raise_timeout(playbook, outcome, progress, TIME_LIMIT_SECONDS)
    failed = {name: host for name, host in progress.hosts.items() if host.failed}
    if unreachable and result.facts and all(host.unreachable for host in failed.values()):
        return result
    if failed:
        reasons = [f"{name}: {host.failed}" for name, host in failed.items()]
        lines = "\n".join(reasons).replace("\n", "\n  ")
        count = f"{len(failed)} of {len(inventory.hosts)} hosts"
        raise FtclusterError(
            f"{playbook} failed on {count}\n  {lines}",
            _advice(playbook, result.inventory, progress),
        )
    if outcome.state != "done":
        raise FtclusterError(f"{playbook} failed; output of ansible:\n{outcome.output.strip()}")
    return result


def _run(
    playbook: str,
    inventory: Inventory,
    variables: Mapping[str, Any],
    options: Sequence[str],
    view: View,
) -> tuple[StagesResult, Outcome]:
    """Run a playbook once, and release the hosts' lock where it did not end well."""
    result = StagesResult(inventory)
    outcome = show_playbook(
        playbook,
        inventory,
        variables,
        options,
        view,
        result.progress,
        result.add,
        TIME_LIMIT_SECONDS,
    )
    if result.locked and outcome.state != "done":
        _unlock(inventory, variables, options)
    result.progress.finished = outcome.state == "done"
    view.close()
    return result, outcome


def show_playbook(
    playbook: str,
    inventory: Inventory,
    variables: Mapping[str, Any],
    options: Sequence[str],
    view: View,
    progress: SetupProgress,
    on_event: Callable[[TaskEvent], None],
    limit_seconds: float,
    settings: Mapping[str, str] | None = None,
) -> Outcome:
    """Run a playbook until its end, Ctrl-C or the time limit, and show its progress."""

    def show(event: TaskEvent) -> None:
        on_event(event)
        progress.add(event)
        view.setup_event(progress, event)

    with Interrupts() as interrupts:
        return run_playbook(
            f"ftcluster.cluster.{playbook}",
            inventory.paths,
            variables,
            show,
            options=options,
            on_tick=view.tick,
            cancelled=lambda: interrupts.count > 0,
            time_limit_seconds=limit_seconds,
            settings=settings,
        )


def raise_timeout(
    playbook: str, outcome: Outcome, progress: SetupProgress, limit_seconds: float
) -> None:
    """Raise an error that says which host was at which task when the time was over."""
    if outcome.state == "timeout":
        where = ", ".join(f"{name}: {host.task}" for name, host in progress.hosts.items())
        raise FtclusterError(f"{playbook} took longer than {limit_seconds:.0f} s, at {where}")


def _unlock(inventory: Inventory, known: Mapping[str, Any], options: Sequence[str]) -> None:
    """Release the lock on all hosts that answer; the earlier failure is reported anyway."""
    run_playbook(
        "ftcluster.cluster.unlock",
        inventory.paths,
        known,
        lambda _: None,
        options=[*options, "--tags", "verify"],
        time_limit_seconds=UNLOCK_SECONDS,
    )


def address(
    paths: Sequence[Path], options: Sequence[str], view: View
) -> tuple[Inventory, dict[str, Any]]:
    """The cluster's hosts, and variables for its playbooks.

    The options or the inventory say which hosts the cluster has; else it has the hosts of the last
    setup, and without one the user is asked where the inventory has several groups. Of those that
    --limit leaves out, the addresses of the last setup are passed on.

    Raises:
        InventoryError: see read_inventory.
        UsageError: see which_hosts.
    """
    before = recall_of(paths)
    inventory = read_inventory(paths, options, before.pattern if before else "")
    if not before and (chosen := which_hosts(inventory, view.ask)):
        inventory = read_inventory(paths, options, chosen)
    known: dict[str, Any] = {HOSTS_VARIABLE: inventory.pattern} if inventory.pattern else {}
    left_out = set(inventory.cluster) - set(inventory.hosts)
    if before and inventory.head in left_out:
        known["cluster_known_stack"] = before.facts.head.stack
    if before and left_out:
        known["cluster_known_addresses"] = {
            host.name: host.network_address
            for host in before.facts.hosts
            if host.name in left_out and host.network_address
        }
    return inventory, known


def _advice(playbook: str, inventory: Inventory, progress: SetupProgress) -> str:
    failed = [host for host in progress.hosts.values() if host.failed]
    again = f"run {playbook} again"
    off = [name for name, host in progress.hosts.items() if host.unreachable]
    if len(off) == len(failed):
        hint = f"check that it is on and that ssh connects to it, then {again}; it resumes"
        if inventory.hosts == inventory.cluster and inventory.head not in off:
            without = pattern_of([f"!{name}" for name in off])
            hint += f"; to go on without it, add --limit '{without}'"
        return hint
    if any(host.changed for host in progress.hosts.values()):
        return f"fix this and {again}; it resumes"
    return f"nothing was changed; fix this and {again}"
