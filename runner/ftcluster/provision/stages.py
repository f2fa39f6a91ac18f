"""Running stages on the hosts of an inventory, and telling what came of it, host by host."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ftcluster.ansible.inventory import HOSTS_VARIABLE, Inventory, read_inventory
from ftcluster.ansible.playbook import TaskEvent, run_playbook
from ftcluster.ansible.signals import Interrupts
from ftcluster.cluster.facts import HostFacts
from ftcluster.cluster.saved import recall_of
from ftcluster.errors import FtclusterError, Interrupted
from ftcluster.progress.state import SetupProgress
from ftcluster.progress.view import View

TIME_LIMIT_SECONDS = 3600
UNLOCK_SECONDS = 60


@dataclass
class StagesResult:
    """What finished stages know.

    Attributes:
        inventory: the hosts.
        progress: the counts of each host.
        facts: what each host is, by name, as far as a stage looked.
        table: the lines of verify's table, or none.
        stack: the name of the stack that is in use now, or "" where no stage looked.
        stack_why: why this one was chosen.
        seconds: how long it took.
    """

    inventory: Inventory
    progress: SetupProgress = field(default_factory=SetupProgress)
    facts: dict[str, HostFacts] = field(default_factory=dict)
    table: list[str] = field(default_factory=list)
    stack: str = ""
    stack_why: str = ""
    seconds: float = 0.0


def run_stages(
    playbook: str,
    paths: Sequence[Path],
    options: Sequence[str],
    view: View,
    variables: Mapping[str, Any] | None = None,
    time_limit_seconds: float = TIME_LIMIT_SECONDS,
) -> StagesResult:
    """Run a playbook of stages.

    Args:
        playbook: its name in the collection, which is also what messages call it.
        paths: the inventories.
        options: arguments of ansible-playbook.
        view: where the progress is shown.
        variables: data for the playbook; the user's own -e among the options go before them.
        time_limit_seconds: after this it is given up.

    Raises:
        FtclusterError: a host failed or does not answer; names each with its reason.
        Interrupted: the user stopped it.
    """
    inventory, known = address(paths, options)
    result = StagesResult(inventory)
    progress = result.progress
    if inventory.pattern:
        view.say(f"hosts: {inventory.pattern} ({len(inventory.cluster)})")
    began = time.monotonic()
    locked = False

    def on_event(event: TaskEvent) -> None:
        nonlocal locked
        locked = locked or (event.action.endswith(".setup_lock") and event.kind == "ok")
        found = event.result.get("ansible_facts", {})
        if "preflight_facts" in found:
            result.facts[event.host] = HostFacts.from_dict(found["preflight_facts"])
        if "cluster_hosts" in found:
            result.inventory = inventory.in_order(found["cluster_hosts"])
        result.stack_why = found.get("torch_stack_choice", {}).get("why", result.stack_why)
        if event.action.endswith(".stack_link") and "current" in event.result:
            result.stack = stack_name(event.result["current"])
        result.table = found.get("verify_table", result.table)
        progress.add(event)
        view.setup_event(progress, event)

    with Interrupts() as interrupts:
        outcome = run_playbook(
            f"ftcluster.cluster.{playbook}",
            inventory.paths,
            {**(variables or {}), **known},
            on_event,
            options=options,
            on_tick=view.tick,
            cancelled=lambda: interrupts.count > 0,
            time_limit_seconds=time_limit_seconds,
        )
    if locked and outcome.state != "done":
        _unlock(inventory, known, options)
    progress.finished = outcome.state == "done"
    view.close()
    result.seconds = time.monotonic() - began
    if outcome.state == "stopped":
        raise Interrupted(f"stopped: {playbook} is not finished; run it again and it goes on")
    if outcome.state == "timeout":
        where = ", ".join(f"{name}: {host.task}" for name, host in progress.hosts.items())
        raise FtclusterError(
            f"{playbook} was given up after {time_limit_seconds:.0f} s, at {where}"
        )
    failed = {name: host for name, host in progress.hosts.items() if host.failed}
    if failed:
        words = [f"{name}: {host.task}: {host.failed}" for name, host in failed.items()]
        lines = "\n".join(words).replace("\n", "\n  ")
        count = f"{len(failed)} of {len(inventory.hosts)} hosts"
        raise FtclusterError(
            f"{playbook} failed on {count}\n  {lines}", _advice(playbook, progress)
        )
    if outcome.state != "done":
        raise FtclusterError(f"{playbook} failed: ansible said\n{outcome.output.strip()}")
    return result


def _unlock(inventory: Inventory, known: Mapping[str, Any], options: Sequence[str]) -> None:
    """Let the next setup in on all hosts that answer; what went wrong before is told anyway."""
    run_playbook(
        "ftcluster.cluster.unlock",
        inventory.paths,
        known,
        lambda _: None,
        options=[*options, "--tags", "verify"],
        time_limit_seconds=UNLOCK_SECONDS,
    )


def stack_name(folder: str) -> str:
    """The stack of a folder such as /opt/ftcluster/stacks/native-1b2c3d4e5f60.

    >>> stack_name("/opt/ftcluster/stacks/intel-2.8-1b2c3d4e5f60")
    'intel-2.8'
    """
    return Path(folder).name.rpartition("-")[0]


def address(paths: Sequence[Path], options: Sequence[str]) -> tuple[Inventory, dict[str, Any]]:
    """The hosts that are meant, and what a playbook has to know of them.

    Which hosts are the cluster's is told by the options or the inventory; else they are the same as
    at the last setup. What was found then of hosts that are left out now still holds.

    Args:
        paths: the inventories.
        options: arguments of ansible-playbook.

    Returns:
        The hosts, and variables of a playbook.

    Raises:
        InventoryError: see read_inventory.
    """
    before = recall_of(paths)
    inventory = read_inventory(paths, options, before.pattern if before else "")
    known: dict[str, Any] = {HOSTS_VARIABLE: inventory.pattern} if inventory.pattern else {}
    left_out = set(inventory.cluster) - set(inventory.hosts)
    if before and left_out:
        known["cluster_known_addresses"] = {
            host.name: host.network_address
            for host in before.facts.hosts
            if host.name in left_out and host.network_address
        }
    return inventory, known


def _advice(playbook: str, progress: SetupProgress) -> str:
    failed = [host for host in progress.hosts.values() if host.failed]
    if all(host.unreachable for host in failed):
        return f"see that it is on and that ssh reaches it, then run {playbook} again; it goes on"
    if any(host.changed for host in progress.hosts.values()):
        return f"mend this and run {playbook} again; it goes on where it stopped"
    return f"nothing was changed; mend this and run {playbook} again"
