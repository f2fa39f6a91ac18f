"""Checks whether a cluster is fit for training, and why not. Changes nothing."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ftcluster.cluster.saved import recall, recall_of
from ftcluster.operations.connection import Connection
from ftcluster.operations.setup.setup import find_inventories
from ftcluster.progress.view import View
from ftcluster.provision import check_report, check_text, system_report
from ftcluster.provision.check import collect
from ftcluster.provision.host_history import compared, keep, read_history


@dataclass(frozen=True)
class CheckResult:
    """What was found.

    Attributes:
        found: the document of `check --json`.
    """

    found: dict[str, Any]

    @property
    def fit(self) -> bool:
        """Whether the cluster can train."""
        return bool(self.found["state"] == "fit")

    @property
    def warnings(self) -> list[str]:
        """What is slower or other than it should be."""
        return list(self.found["warnings"])

    def document(self) -> dict[str, Any]:
        """What `check --json` prints."""
        return self.found

    def lines(self) -> list[str]:
        """The result as text."""
        return list(check_text.lines(self.found))

    def line(self) -> str:
        """The result in one line."""
        return check_text.one_line(self.found)


def check(
    connection: Connection,
    view: View,
    accept_new_host_keys: bool = False,
    report: Path | None = None,
) -> CheckResult:
    """Check the hosts of the connection's inventories, or of the cluster that was set up last.

    Args:
        accept_new_host_keys: whether keys of hosts that ssh does not know are stored unasked.
        report: a new file for what the hosts' systems are, without names and addresses.

    Raises:
        UsageError: that file is there.
        FtclusterError: Ansible could not begin, or it took too long.
        Interrupted: the user stopped it.
    """
    if report:
        system_report.refuse_existing(report)
    given = connection.inventories
    cluster = connection.cluster or (None if given else recall())
    inventories = cluster.inventories if cluster else find_inventories(given)
    before = recall_of(inventories)
    connection_options = (
        connection.to(before) if before else connection.arguments
    )  # connect as setup did
    found = collect(inventories, connection_options, view, accept_new_host_keys)
    document = check_report.document(found)
    if report:
        systems = system_report.read_systems(found, connection_options, view)
        system_report.write(report, system_report.report(found, document, systems))
        view.say(f"{report}: the systems of {len(systems)} hosts; read it before you send it")
    document = compared(document, read_history(document["inventory"]))
    keep(document)
    return CheckResult(document)
