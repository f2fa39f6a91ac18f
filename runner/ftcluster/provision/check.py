"""Runs the playbook `check` on the hosts of an inventory and collects its results."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ftcluster.ansible.answers import facts_set
from ftcluster.ansible.host_keys import refused_hosts
from ftcluster.ansible.inventory import Inventory
from ftcluster.ansible.playbook import Outcome, TaskEvent
from ftcluster.ansible.scratch import private_folder
from ftcluster.errors import FtclusterError, Interrupted
from ftcluster.progress.state import SetupProgress
from ftcluster.progress.view import View
from ftcluster.provision.meeting import meet, say_unchecked
from ftcluster.provision.stages import address, raise_timeout, show_playbook

TIME_LIMIT_SECONDS = 300  # the ranks themselves give up after 180


@dataclass
class Found:
    """The results of all hosts.

    Attributes:
        facts: results of the module `host_facts`, by host.
        problems: what preflight found wrong, by host.
        notices: what preflight found slow, by host.
        failures: of hosts, the task that failed.
        report: verify's, or None where no rank was started.
    """

    inventory: Inventory
    facts: dict[str, dict[str, Any]] = field(default_factory=dict)
    problems: dict[str, list[dict[str, str]]] = field(default_factory=dict)
    notices: dict[str, list[dict[str, str]]] = field(default_factory=dict)
    failures: dict[str, TaskEvent] = field(default_factory=dict)
    report: dict[str, Any] | None = None
    seconds: float = 0.0

    def add(self, event: TaskEvent) -> None:
        """Add one event of the playbook."""
        if event.kind in ("failed", "unreachable"):
            self.failures[event.host] = event
        known = facts_set(event)
        if "cluster_hosts" in known:
            self.inventory = self.inventory.in_order(known["cluster_hosts"])
        for name, found in (
            ("preflight_facts", self.facts),
            ("preflight_problems", self.problems),
            ("preflight_notices", self.notices),
        ):
            if name in known:
                found[event.host] = known[name]
        self.report = known.get("verify_report", self.report)


def collect(
    paths: Sequence[Path], options: Sequence[str], view: View, accept_new: bool = False
) -> Found:
    """Run the playbook; a host that fails does not keep the others from being checked.

    Args:
        accept_new: see run_stages.

    Raises:
        FtclusterError: Ansible could not begin, or it took too long.
        Interrupted: the user stopped it.
    """
    inventory, known = address(paths, options, view)
    say_unchecked(inventory, view)
    began = time.monotonic()
    found, outcome = _run(inventory, known, options, view)
    refused = refused_hosts(outcome) if outcome.state == "failed" else ()
    if refused and meet("check", inventory, refused, options, view, accept_new):
        found, outcome = _run(inventory, known, options, view)
    found.seconds = time.monotonic() - began
    if outcome.state == "stopped":
        raise Interrupted("stopped: the cluster is unchanged")
    if outcome.state == "failed" and not found.failures:
        raise FtclusterError(f"check failed; output of ansible:\n{outcome.output.strip()}")
    return found


def _run(
    inventory: Inventory, known: Mapping[str, Any], options: Sequence[str], view: View
) -> tuple[Found, Outcome]:
    found = Found(inventory)
    progress = SetupProgress()
    # connections of its own: Ansible would wait 15 s for one that an earlier command has left open
    # to a host that is off now
    with private_folder() as sockets:
        settings = {"ANSIBLE_SSH_CONTROL_PATH_DIR": str(sockets)}
        outcome = show_playbook(
            "check", inventory, known, options, view, progress, found.add, TIME_LIMIT_SECONDS,
            settings,
        )  # fmt: skip
    progress.finished = True
    view.close()
    raise_timeout("check", outcome, progress, TIME_LIMIT_SECONDS)
    return found, outcome
