"""Checks whether a cluster is fit for training, and why not. Changes nothing."""

from dataclasses import dataclass
from typing import Any

from ftcluster.cluster.saved import recall, recall_of
from ftcluster.operations.connection import Connection
from ftcluster.operations.setup import find_inventories
from ftcluster.progress.view import View
from ftcluster.provision import check_report, check_text
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


def check(connection: Connection, view: View, accept_new_host_keys: bool = False) -> CheckResult:
    """Check the hosts of the connection's inventories, or of the cluster that was set up last.

    Args:
        accept_new_host_keys: whether keys of hosts that ssh does not know are stored unasked.

    Raises:
        FtclusterError: Ansible could not begin, or it took too long.
        Interrupted: the user stopped it.
    """
    given = connection.inventories
    known = connection.cluster or (None if given else recall())
    inventories = known.inventories if known else find_inventories(given)
    before = recall_of(inventories)
    connection_options = (
        connection.to(before) if before else connection.arguments
    )  # connect as setup did
    found = check_report.document(
        collect(inventories, connection_options, view, accept_new_host_keys)
    )
    found = compared(found, read_history(found["inventory"]))
    keep(found)
    return CheckResult(found)
