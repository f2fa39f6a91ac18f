"""Playbooks of stages (setup, teardown, rollback) on the hosts of an inventory."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ftcluster.ansible.answers import (
    CHOICE,
    CURRENT,
    FACTS,
    HOSTS,
    LACKS,
    MEASURED,
    ORPHANS,
    PREVIOUS,
    RECORDED,
    TABLE,
    take,
)
from ftcluster.ansible.failures import failed_without_task
from ftcluster.ansible.host_keys import refused_hosts
from ftcluster.ansible.inventory import Inventory, pattern_of, read_inventory
from ftcluster.ansible.playbook import PlaybookOutcome, TaskEvent, run_playbook
from ftcluster.ansible.playbooks import (
    SETUP_LOCK,
    ClusterVariables,
    Rollback,
    Stages,
    Unlock,
)
from ftcluster.ansible.settings import for_hosts
from ftcluster.ansible.signals import Interrupts
from ftcluster.cluster.facts import HostFacts, stack_name
from ftcluster.cluster.saved import recall_of
from ftcluster.errors import FtclusterError, Interrupted
from ftcluster.progress.state import HostProgress, SetupProgress
from ftcluster.progress.view import View
from ftcluster.provision.questions import meet, say_unchecked, which_hosts
from ftcluster.text.host_names import with_host

TIME_LIMIT_SECONDS = 3600
UNLOCK_SECONDS = 60


@dataclass
class StagesResult:
    """The result of a playbook of stages.

    Attributes:
        progress: task counts of each host.
        facts: facts of each host by name, if a stage gathered them.
        table: lines of verify's table.
        records: text of the cluster's record by host; only the head has a record.
        stack: name of the stack in use, or "" if no stage determined it.
        stack_why: reason for the choice of this stack.
        lacks: missing features of each host: "firewall" or "tcmalloc".
        orphans: files that still belong to the user id of a removed account, with the id, by host.
        locked: True if this setup holds the lock of a host.
        set_up: names of hosts that have a stack in use.
    """

    inventory: Inventory
    progress: SetupProgress = field(default_factory=SetupProgress)
    facts: dict[str, HostFacts] = field(default_factory=dict)
    table: list[str] = field(default_factory=list)
    records: dict[str, object] = field(default_factory=dict)
    stack: str = ""
    stack_why: str = ""
    lacks: dict[str, list[str]] = field(default_factory=dict)
    orphans: dict[str, list[str]] = field(default_factory=dict)
    seconds: float = 0.0
    locked: bool = False
    set_up: set[str] = field(default_factory=set)

    def add(self, event: TaskEvent) -> None:
        """Add one event of the playbook."""
        if event.action == SETUP_LOCK and event.kind == "ok":
            self.locked = True
        if gathered := take(FACTS, event):
            (facts,) = gathered
            stack = stack_name(facts.get("current") or "")
            with_stack = {**facts, "stack": stack} if stack else facts
            if stack:
                self.set_up.add(event.host)
            self.facts[event.host] = HostFacts.from_dict(with_stack)
            self.records[event.host] = facts.get("record", "")
        if record := take(MEASURED, event) or take(RECORDED, event):
            (self.records[event.host],) = record
        if hosts := take(HOSTS, event):
            self.inventory = self.inventory.in_order(*hosts)
        if choice := take(CHOICE, event):
            self.stack_why = choice[0].get("why", self.stack_why)
        if current := take(CURRENT, event) or take(PREVIOUS, event):
            self.stack = stack_name(*current)
        if features := take(LACKS, event):
            (self.lacks[event.host],) = features
        if paths := take(ORPHANS, event):
            (self.orphans[event.host],) = paths
        if table := take(TABLE, event):
            (self.table,) = table


def run_stages(
    playbook: Stages,
    paths: Sequence[Path],
    options: Sequence[str],
    view: View,
    unreachable: bool = False,
    accept_new: bool = False,
) -> StagesResult:
    """Run a playbook of stages.

    Args:
        playbook: playbook with its variables; -e in `options` overrides the variables.
        paths: paths of the inventories.
        options: arguments of ansible-playbook.
        unreachable: True to succeed even if some hosts do not respond.
        accept_new: True to store unknown host keys without a question.

    Raises:
        FtclusterError: a host failed or does not respond; the message names each such host with the
            reason.
        Interrupted: the user stopped the command.
    """
    inventory, variables = address(paths, options, view)
    if inventory.pattern:
        view.say(f"hosts: {inventory.pattern} ({len(inventory.cluster)})")
    say_unchecked(inventory, view)
    name, began = playbook.name, time.monotonic()
    result, outcome = _run(playbook, inventory, variables, options, view)
    refused = refused_hosts(outcome) if outcome.state == "failed" and not unreachable else ()
    if refused and meet(name, inventory, refused, options, view, accept_new):
        result, outcome = _run(playbook, inventory, variables, options, view)
    progress = result.progress
    result.seconds = time.monotonic() - began
    if outcome.state == "stopped":
        raise Interrupted(f"stopped: {name} is not finished; run it again to resume")
    raise_timeout(name, outcome, progress, TIME_LIMIT_SECONDS)
    failed = {name: host for name, host in progress.hosts.items() if host.failed}
    if unreachable and result.facts and all(host.unreachable for host in failed.values()):
        return result
    if failed:
        lines = "\n".join(_reasons(failed)).replace("\n", "\n  ")
        count = f"{len(failed)} of {len(inventory.hosts)} hosts"
        raise FtclusterError(
            f"{name} failed on {count}\n  {lines}",
            _advice(name, result.inventory, progress),
        )
    if outcome.state != "done":
        raise failed_without_task(name, outcome.output)
    return result


def _run(
    playbook: Stages,
    inventory: Inventory,
    variables: ClusterVariables,
    options: Sequence[str],
    view: View,
) -> tuple[StagesResult, PlaybookOutcome]:
    """Run a playbook once; release the hosts' locks if the playbook failed."""
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
    result.progress.settle(outcome.failed_hosts)
    result.progress.finished = outcome.state == "done"
    view.close()
    return result, outcome


def show_playbook(
    playbook: Stages,
    inventory: Inventory,
    variables: ClusterVariables,
    options: Sequence[str],
    view: View,
    progress: SetupProgress,
    on_event: Callable[[TaskEvent], None],
    limit_seconds: float,
    settings: Mapping[str, str] | None = None,
) -> PlaybookOutcome:
    """Run a playbook until its end, Ctrl-C or the time limit, and show its progress."""

    def show(event: TaskEvent) -> None:
        on_event(event)
        progress.add(event)
        view.setup_event(progress, event)

    with Interrupts() as interrupts:
        return run_playbook(
            playbook.qualified,
            inventory.paths,
            {**playbook.variables(), **variables.variables()},
            show,
            options=options,
            on_tick=view.tick,
            cancelled=lambda: interrupts.count > 0,
            time_limit_seconds=limit_seconds,
            settings={**for_hosts(len(inventory.hosts)), **(settings or {})},
        )


def raise_timeout(
    playbook: str, outcome: PlaybookOutcome, progress: SetupProgress, limit_seconds: float
) -> None:
    """If the time limit passed, raise an error that names the current task of each host."""
    if outcome.state == "timeout":
        where = ", ".join(f"{name}: {host.task}" for name, host in progress.hosts.items())
        raise FtclusterError(f"{playbook} took longer than {limit_seconds:.0f} s, at {where}")


def _unlock(inventory: Inventory, variables: ClusterVariables, options: Sequence[str]) -> None:
    """Release the lock on all hosts that respond; ignore errors, because the caller reports one."""
    run_playbook(
        Unlock().qualified,
        inventory.paths,
        variables.variables(),
        lambda _: None,
        options=[*options, "--tags", "verify"],
        time_limit_seconds=UNLOCK_SECONDS,
    )


def address(
    paths: Sequence[Path], options: Sequence[str], view: View
) -> tuple[Inventory, ClusterVariables]:
    """Return the cluster's hosts, and variables for its playbooks.

    If neither the options nor the inventory select the cluster's hosts, use the hosts of the last
    setup. If there was no setup and the inventory has several groups, ask the user. Hosts that
    --limit excludes keep the addresses from the last setup.

    Raises:
        InventoryError: see read_inventory.
        UsageError: see which_hosts.
    """
    before = recall_of(paths)
    inventory = read_inventory(paths, options, before.pattern if before else "")
    if not before and (chosen := which_hosts(inventory, view.ask)):
        inventory = read_inventory(paths, options, chosen)
    left_out = set(inventory.cluster) - set(inventory.hosts)
    stack, addresses = None, None
    if before and inventory.head in left_out:
        stack = before.facts.head.stack
    if before and left_out:
        addresses = {
            host.name: host.network_address
            for host in before.facts.hosts
            if host.name in left_out and host.network_address
        }
    return inventory, ClusterVariables(inventory.pattern or None, stack, addresses)


def _reasons(failed: Mapping[str, HostProgress]) -> Iterator[str]:
    """Yield each reason for a failure once, with its hosts."""
    hosts: dict[str, list[str]] = {}
    for name, host in failed.items():
        hosts.setdefault(host.failed, []).append(name)
    for reason, names in hosts.items():
        yield with_host(", ".join(names), reason)


def _advice(playbook: str, inventory: Inventory, progress: SetupProgress) -> str:
    failed = [host for host in progress.hosts.values() if host.failed]
    command = "ftcluster setup --rollback" if playbook == Rollback.name else playbook
    again = f"run {command} again"
    off = [name for name, host in progress.hosts.items() if host.unreachable]
    if len(off) == len(failed):
        hint = f"check that each of these hosts is on and that ssh connects to it, then {again}"
        hint += ", which resumes"
        if inventory.hosts == inventory.cluster and inventory.head not in off:
            without = pattern_of([f"!{name}" for name in off])
            hint += f"; to continue without these hosts, add --limit '{without}'"
        return hint
    if any(host.changed for host in progress.hosts.values()):
        return f"fix this and {again}; it resumes"
    return f"nothing was changed; fix this and {again}"
