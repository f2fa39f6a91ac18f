"""Runs the playbook `check` on the hosts of an inventory and keeps what they say."""

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ftcluster.ansible.inventory import Inventory
from ftcluster.ansible.playbook import TaskEvent, run_playbook
from ftcluster.ansible.signals import Interrupts
from ftcluster.errors import FtclusterError, Interrupted
from ftcluster.paths import memory_dir
from ftcluster.progress.state import SetupProgress
from ftcluster.progress.view import View
from ftcluster.provision.stages import address

TIME_LIMIT_SECONDS = 300  # the ranks themselves give up after 180


@dataclass(frozen=True)
class Failure:
    """A host that Ansible could not go on with.

    Attributes:
        task: at which task.
        message: why, in Ansible's words.
        unreachable: whether it does not answer at all.
    """

    task: str
    message: str
    unreachable: bool


@dataclass
class Found:
    """Everything that the hosts said.

    Attributes:
        inventory: the hosts.
        facts: what each host is that answered, as the module `host_facts` tells it.
        problems: sentences of preflight, by host.
        notices: sentences of preflight on what is slower than it could be, by host.
        failures: hosts that were lost, with why.
        report: what verify printed, or None where no rank was started.
        seconds: how long it took.
    """

    inventory: Inventory
    facts: dict[str, dict[str, Any]] = field(default_factory=dict)
    problems: dict[str, list[str]] = field(default_factory=dict)
    notices: dict[str, list[str]] = field(default_factory=dict)
    failures: dict[str, Failure] = field(default_factory=dict)
    report: dict[str, Any] | None = None
    seconds: float = 0.0

    def add(self, event: TaskEvent) -> None:
        """Fold one event of the playbook in."""
        if event.kind in ("failed", "unreachable"):
            unreachable = event.kind == "unreachable"
            self.failures[event.host] = Failure(event.task, event.message, unreachable)
        told = event.result.get("ansible_facts", {})
        if "cluster_hosts" in told:
            self.inventory = self.inventory.in_order(told["cluster_hosts"])
        for name, found in (
            ("preflight_facts", self.facts),
            ("preflight_problems", self.problems),
            ("preflight_notices", self.notices),
        ):
            if name in told:
                found[event.host] = told[name]
        self.report = told.get("verify_report", self.report)


def collect(paths: Sequence[Path], options: Sequence[str], view: View) -> Found:
    """Ask the hosts; one that is lost does not keep the others from being asked.

    Args:
        paths: the inventories.
        options: arguments of ansible-playbook.
        view: where the progress is shown.

    Raises:
        FtclusterError: Ansible could not begin, or it took too long.
        Interrupted: the user stopped it.
    """
    inventory, known = address(paths, options)
    found = Found(inventory)
    progress = SetupProgress()
    began = time.monotonic()

    def on_event(event: TaskEvent) -> None:
        found.add(event)
        progress.add(event)
        view.setup_event(progress, event)

    # connections of its own: one that an earlier command has left open to a host that is off now
    # would be waited for, 15 s, before another is tried
    sockets = tempfile.TemporaryDirectory(prefix="ftcluster-", dir=memory_dir())
    with Interrupts() as interrupts, sockets as folder:
        outcome = run_playbook(
            "ftcluster.cluster.check",
            inventory.paths,
            known,
            on_event,
            options=options,
            on_tick=view.tick,
            cancelled=lambda: interrupts.count > 0,
            time_limit_seconds=TIME_LIMIT_SECONDS,
            settings={"ANSIBLE_SSH_CONTROL_PATH_DIR": folder},
        )
    progress.finished = True
    view.close()
    found.seconds = time.monotonic() - began
    if outcome.state == "stopped":
        raise Interrupted("stopped: the cluster is as it was")
    if outcome.state == "timeout":
        where = ", ".join(f"{name}: {host.task}" for name, host in progress.hosts.items())
        raise FtclusterError(f"check was given up after {TIME_LIMIT_SECONDS} s, at {where}")
    if outcome.state == "failed" and not found.failures:
        raise FtclusterError(f"check failed: ansible said\n{outcome.output.strip()}")
    return found
