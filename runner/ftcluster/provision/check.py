"""The playbook `check` on the hosts of an inventory, and its results."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ftcluster.ansible.answers import FACTS, HOSTS, NOTICES, PROBLEMS, REPORT, take
from ftcluster.ansible.failures import failed_without_task
from ftcluster.ansible.host_keys import refused_hosts
from ftcluster.ansible.inventory import Inventory
from ftcluster.ansible.playbook import PlaybookOutcome, TaskEvent
from ftcluster.ansible.playbooks import Check, ClusterVariables
from ftcluster.ansible.scratch import private_folder
from ftcluster.errors import Interrupted
from ftcluster.progress.state import SetupProgress
from ftcluster.progress.view import View
from ftcluster.provision.questions import meet, say_unchecked
from ftcluster.provision.stages import address, raise_timeout, show_playbook

TIME_LIMIT_SECONDS = 300  # the ranks themselves stop after 180 seconds


@dataclass
class Found:
    """The results of all hosts.

    Attributes:
        facts: results of the module `host_facts`, by host.
        problems: problems that the stage preflight detected, by host.
        notices: performance notices of the stage preflight, by host.
        failures: failed task, by host.
        report: report of verify, or None if no rank was started.
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
        if hosts := take(HOSTS, event):
            self.inventory = self.inventory.in_order(*hosts)
        if facts := take(FACTS, event):
            (self.facts[event.host],) = facts
        if problems := take(PROBLEMS, event):
            (self.problems[event.host],) = problems
        if notices := take(NOTICES, event):
            (self.notices[event.host],) = notices
        if report := take(REPORT, event):
            (self.report,) = report


def collect(
    paths: Sequence[Path], options: Sequence[str], view: View, accept_new: bool = False
) -> Found:
    """Run the playbook `check`; if a host fails, the checks of the other hosts continue.

    Args:
        accept_new: see `run_stages`.

    Raises:
        FtclusterError: Ansible could not start, or the playbook took too long.
        Interrupted: the user stopped the command.
    """
    inventory, variables = address(paths, options, view)
    say_unchecked(inventory, view)
    began = time.monotonic()
    results, outcome = _run(inventory, variables, options, view)
    refused = refused_hosts(outcome) if outcome.state == "failed" else ()
    if refused and meet("check", inventory, refused, options, view, accept_new):
        results, outcome = _run(inventory, variables, options, view)
    results.seconds = time.monotonic() - began
    if outcome.state == "stopped":
        raise Interrupted("stopped: the cluster is unchanged")
    if outcome.state == "failed" and not results.failures:
        raise failed_without_task("check", outcome.output)
    return results


def _run(
    inventory: Inventory, variables: ClusterVariables, options: Sequence[str], view: View
) -> tuple[Found, PlaybookOutcome]:
    results = Found(inventory)
    progress = SetupProgress()
    # Use new connections. An earlier command may have left a connection open to a host that is off
    # now, and Ansible would wait 15 s for it.
    with private_folder() as sockets:
        settings = {"ANSIBLE_SSH_CONTROL_PATH_DIR": str(sockets)}
        outcome = show_playbook(
            Check(), inventory, variables, options, view, progress, results.add, TIME_LIMIT_SECONDS,
            settings,
        )  # fmt: skip
    progress.finished = True
    view.close()
    raise_timeout("check", outcome, progress, TIME_LIMIT_SECONDS)
    return results, outcome
