"""Check whether a cluster is fit for training, and report the reasons. Changes nothing."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ftcluster.ansible.inventory import inventory_path
from ftcluster.cluster.saved import recall, recall_of
from ftcluster.operations.connection import Connection
from ftcluster.progress.view import View
from ftcluster.provision import check_report, check_text, system_report
from ftcluster.provision.check import collect
from ftcluster.provision.host_history import compared, keep, read_history


@dataclass(frozen=True)
class CheckResult:
    """The result of a check.

    Attributes:
        found: the document that `check --json` prints.
    """

    found: dict[str, Any]

    @property
    def fit(self) -> bool:
        """True if the cluster can train."""
        return bool(self.found["state"] == "fit")

    @property
    def warnings(self) -> list[str]:
        """Findings that do not prevent training, such as a slow host."""
        return list(self.found["warnings"])

    def document(self) -> dict[str, Any]:
        """Return the document that `check --json` prints."""
        return self.found

    def lines(self) -> list[str]:
        """Return the result as text."""
        return list(check_text.lines(self.found))

    def line(self) -> str:
        """Return the result as one line."""
        return check_text.one_line(self.found)


def check(
    connection: Connection,
    view: View,
    accept_new_host_keys: bool = False,
    report: Path | None = None,
) -> CheckResult:
    """Check the hosts of the connection's inventories, or of the cluster that was set up last.

    Args:
        accept_new_host_keys: True to store the SSH keys of new hosts without asking.
        report: path of a new file that describes the hosts' systems without names and addresses;
            None for no file.

    Raises:
        UsageError: the file `report` exists already.
        FtclusterError: Ansible could not start, or it exceeded its time limit.
        Interrupted: the user stopped the check.
    """
    if report:
        system_report.refuse_existing(report)
    inventories = tuple(map(inventory_path, connection.inventories))
    if connection.cluster or not inventories:
        inventories = (connection.cluster or recall()).inventories
    before = recall_of(inventories)
    # connect with the options of the last setup
    connection_options = connection.to(before) if before else connection.arguments
    results = collect(inventories, connection_options, view, accept_new_host_keys)
    document = check_report.document(results)
    if report:
        systems = system_report.read_systems(results, connection_options, view)
        system_report.write(report, system_report.report(results, document, systems))
        view.say(f"{report} describes {len(systems)} hosts; read the file before you share it")
    document = compared(document, read_history(document["inventory"]))
    keep(document)
    return CheckResult(document)
