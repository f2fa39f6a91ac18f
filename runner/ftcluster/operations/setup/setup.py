"""Turn hosts into a cluster, roll its stack back, and remove the cluster again."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ftcluster.ansible.inventory import LOCALHOST, inventory_path
from ftcluster.ansible.playbooks import Rollback, Setup, Teardown
from ftcluster.ansible.settings import inventories_of_ansible
from ftcluster.cluster.facts import ClusterFacts
from ftcluster.cluster.saved import Cluster, NoCluster, change, damage, forget, recall, recall_of
from ftcluster.errors import FtclusterError, UsageError
from ftcluster.operations.connection import Connection, place_of, remembered
from ftcluster.progress.format import duration
from ftcluster.progress.view import View
from ftcluster.provision.stages import StagesResult, run_stages
from ftcluster.stacks.catalog import find_stack, load_stacks
from ftcluster.text.host_names import short_names
from ftcluster.text.plural import counted

# lines of the summary about features that a host lacks
LACKING = {
    "firewall": "not ready, because without root there is no firewall: whoever reaches the ports "
    "of training can join",
    "tcmalloc": "no tcmalloc, so a training step takes 15 to 35 % longer",
}
CHECK = "--check"  # option of ansible-playbook: change nothing


@dataclass(frozen=True)
class SetupRequest:
    """The cluster to set up, and its stack.

    Attributes:
        connection: connection with the inventories. Without inventories, the inventories of the
            cluster that was set up last are used; without such a cluster, this machine's.
        stack: name of a stack; "auto" for the first stack that the hosts support; "" for the
            inventory's stack or the cluster's current stack.
        bundle: path of a file from `ftcluster bundle` to install from; "" to download packages.
        allow_yanked: True if yanked releases are accepted.
        allow_unverified: True if packages without a hash in a lock are accepted.
        downgrade: True if this ftcluster's package may replace a newer one.
        prune: True if all stacks except the current and the previous one are removed.
        rollback: True to switch all hosts back to the previous stack, and do nothing else.
        accept_new_host_keys: True if host keys that ssh does not know are stored without asking.
    """

    connection: Connection = field(default_factory=Connection)
    stack: str = ""
    bundle: str = ""
    allow_yanked: bool = False
    allow_unverified: bool = False
    downgrade: bool = False
    prune: bool = False
    rollback: bool = False
    accept_new_host_keys: bool = False

    def __post_init__(self) -> None:
        """Check that --rollback is not combined with a stack or a bundle.

        Raises:
            UsageError: --rollback is combined with a stack or a bundle.
        """
        if self.rollback and (self.stack or self.bundle):
            raise UsageError("--rollback cannot be used with --stack or --bundle")

    def playbook(self) -> Setup:
        """Return the playbook for the requested stack.

        Raises:
            UsageError: there is no such stack or bundle.
        """
        if self.stack and self.stack != "auto":
            find_stack(self.stack, load_stacks())
        bundle = Path(self.bundle).absolute() if self.bundle else None
        if bundle and not bundle.is_file():
            raise UsageError(f"bundle {self.bundle} does not exist")
        return Setup(
            torch_stack_name=self.stack or None,
            torch_stack_bundle=str(bundle) if bundle else None,
            # None leaves the choice to the inventory
            torch_stack_allow_yanked=self.allow_yanked or None,
            torch_stack_allow_unverified=self.allow_unverified or None,
            node_agent_downgrade=self.downgrade or None,
            ftcluster_prune=self.prune or None,
        )


@dataclass(frozen=True)
class SetupResult:
    """A finished setup.

    Attributes:
        stages: the results of the playbook.
        checked: True if nothing was changed, because of --check.
        rollback: True if the hosts were switched back to the previous stack.
    """

    stages: StagesResult
    checked: bool = False
    rollback: bool = False

    @property
    def cluster(self) -> Cluster:
        """The saved cluster.

        Raises:
            FtclusterError: the cluster was not verified, so it was not saved.
        """
        return recall_of(self.stages.inventory.paths) or recall()

    def document(self) -> dict[str, Any]:
        """Return the document that `setup --json` prints."""
        result = self.stages
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
            "lacks": result.lacks,
            "notices": result.progress.notices,
            "table": result.table,
            "seconds": round(result.seconds, 1),
        }

    def lines(self) -> list[str]:
        """Return the table of the hosts, and a summary."""
        result = self.stages
        changed = sum(host.changed for host in result.progress.hosts.values())
        hosts, changes = counted(len(result.progress.hosts), "host"), counted(changed, "change")
        took = duration(result.seconds)
        if self.checked:
            return [*result.table, f"{hosts} checked, {changes} to make, {took}"]
        if self.rollback:
            return [*result.table, f"{hosts} back on the previous stack, {took}"]
        if not result.table:  # --tags without verify
            return [f"{hosts}: the chosen stages are done, {changes}, {took}"]
        return [*result.table, *self._lacking(), f"{self._readiness()}, {changes}, {took}"]

    def _without(self, feature: str) -> list[str]:
        return [host for host, features in self.stages.lacks.items() if feature in features]

    def _readiness(self) -> str:
        """Return how many hosts are ready; a host without the firewall is set up, but not ready."""
        total, open_hosts = len(self.stages.progress.hosts), len(self._without("firewall"))
        if not open_hosts:
            return f"{counted(total, 'host')} ready"
        return f"{counted(total, 'host')} set up, {total - open_hosts} of them ready"

    def _lacking(self) -> list[str]:
        """Return a line for each missing feature, with its hosts."""
        return [
            f"{short_names(hosts)}: {LACKING[feature]}"
            for feature in LACKING
            if (hosts := self._without(feature))
        ]


def setup(request: SetupRequest, view: View) -> SetupResult:
    """Set up a cluster and save it for later operations; or roll its stack back.

    Raises:
        UsageError: there is no such stack, bundle or inventory.
        FtclusterError: a host failed or does not respond; lists each such host with its reason.
        Interrupted: the user stopped the setup.
    """
    connection, accept_new = request.connection, request.accept_new_host_keys
    inventories = find_inventories(connection.inventories)
    playbook = Setup() if request.rollback else request.playbook()
    options, passwords = connection.options, connection.passwords
    before = recall_of(inventories)
    if before and not connection.inventories:  # reuse the connection options of the last setup
        options = (*before.options, *options)
    elif before:
        for key, value in place_of(before.options).items():
            if key not in place_of(options):
                view.say(
                    f"note: the last setup of this inventory had -e {key}={value}; this one uses "
                    "the inventory's value. For that cluster: ftcluster setup, without an inventory"
                )
    if damaged := damage():
        view.say(f"{damaged}; reading the hosts again")
    checked = CHECK in options
    if not request.rollback:
        result = set_up(inventories, options, view, passwords, playbook, accept_new)
        return SetupResult(result, checked)
    result = run_stages(
        Rollback(), inventories, (*options, *passwords), view, accept_new=accept_new
    )
    if not checked:
        change(inventories, lambda saved: saved and _with_stack(saved, result))
    return SetupResult(result, checked, rollback=True)


def find_inventories(given: Sequence[str]) -> tuple[Path, ...]:
    """Return the paths of the given inventories.

    If no inventory is given, return the inventories of the saved cluster. If no cluster is saved,
    return the inventory of this machine.

    Raises:
        UsageError: no inventory is given or saved, but Ansible's configuration names an inventory.
        FtclusterError: no inventory is given, and the saved cluster cannot be read.
    """
    if given:
        return tuple(map(inventory_path, given))
    try:
        return recall().inventories
    except NoCluster:
        theirs, where = inventories_of_ansible()
        if theirs:
            words = theirs[0] if len(theirs) == 1 else " ".join(f"-i {path}" for path in theirs)
            raise UsageError(
                f"which inventory? {where} names {', '.join(theirs)}",
                f"ftcluster setup {words}, or for this machine: ftcluster setup {LOCALHOST}",
            ) from None
        return (inventory_path(LOCALHOST),)


def set_up(
    inventories: Sequence[Path],
    options: tuple[str, ...],
    view: View,
    passwords: tuple[str, ...] = (),
    playbook: Setup = Setup(),  # noqa: B008 - it is frozen
    accept_new: bool = False,
) -> StagesResult:
    """Run the playbook `setup` and save the cluster.

    Args:
        passwords: additional arguments of ansible-playbook, which are not saved.
        playbook: the playbook, with the variables that select the stack.
        accept_new: True if host keys that ssh does not know are stored without asking.

    Raises:
        FtclusterError: a host failed or does not respond; lists each such host with its reason.
        Interrupted: the user stopped the setup.
    """
    connection_options = (*options, *passwords)
    result = run_stages(playbook, inventories, connection_options, view, accept_new=accept_new)
    if CHECK not in options:
        _save(result, options)
    return result


def _with_stack(cluster: Cluster, result: StagesResult) -> Cluster:
    """Return the cluster with the result's stack on the hosts of this setup."""
    hosts = tuple(
        replace(host, stack=result.stack) if host.name in result.inventory.hosts else host
        for host in cluster.facts.hosts
    )
    return replace(cluster, facts=replace(cluster.facts, hosts=hosts))


def _save(result: StagesResult, options: tuple[str, ...]) -> None:
    """Save the cluster; hosts that --limit or --tags excluded keep their saved state."""
    if not result.table:
        return  # the cluster was not verified, so it must not be used for training
    inventory = result.inventory

    def found(before: Cluster | None) -> Cluster:
        by_name = {name: replace(host, stack=result.stack) for name, host in result.facts.items()}
        if before:
            by_name = {host.name: host for host in before.facts.hosts} | by_name
        hosts = tuple(by_name[name] for name in inventory.cluster if name in by_name)
        kept, pattern = remembered(options), inventory.pattern
        cluster = Cluster(inventory.paths, ClusterFacts(hosts), kept, pattern)
        # --limit may exclude the head
        record = before.record if before else ""
        return cluster.with_record(result.records.get(cluster.facts.head.name, record))

    change(inventory.paths, found)


@dataclass(frozen=True)
class TeardownResult:
    """A finished teardown.

    Attributes:
        stages: the results of the playbook.
        checked: True if nothing was changed, because of --check.
    """

    stages: StagesResult
    checked: bool = False

    @property
    def _changed(self) -> int:
        return sum(host.changed for host in self.stages.progress.hosts.values())

    def document(self) -> dict[str, Any]:
        """Return the document that `teardown --json` prints."""
        result = self.stages
        return {
            "state": "done",
            "inventory": result.inventory.name,
            "changed": self._changed,
            "orphans": {host: paths for host, paths in result.orphans.items() if paths},
            "notices": result.progress.notices,
        }

    def lines(self) -> list[str]:
        """Return a summary as text."""
        done = f"{self._changed} changes to make on" if self.checked else "removed from"
        hosts = counted(len(self.stages.progress.hosts), "host")
        orphans = [
            f"{host}: {path} stays: the next account with this user id would own it; remove it, or "
            "give it to root (chown -R root)"
            for host, paths in self.stages.orphans.items()
            for path in paths
        ]
        return [*orphans, f"{done} {hosts}, {duration(self.stages.seconds)}"]


def _last_set_up() -> str:
    """Return a hint: the command that tears down the cluster that was set up last from here."""
    try:
        inventories = recall().inventories
    except FtclusterError:
        return "ftcluster teardown INVENTORY"
    option = "-i " if len(inventories) > 1 else ""
    paths = " ".join(f"{option}{shlex.quote(str(path))}" for path in inventories)
    return f"for the cluster that was set up last from here: ftcluster teardown {paths}"


def teardown(connection: Connection, view: View) -> TeardownResult:
    """Remove everything that setup installed from the hosts of the connection's inventories.

    Raises:
        UsageError: no inventory is named.
        FtclusterError: a host failed or does not respond; lists each such host with its reason.
    """
    if not connection.inventories:
        raise UsageError("name the inventory of the cluster to remove", _last_set_up())
    paths = tuple(map(inventory_path, connection.inventories))
    result = run_stages(Teardown(), paths, connection.arguments, view)
    checked = CHECK in connection.options
    if not checked and "--limit" not in connection.options:
        forget(result.inventory.paths)
    return TeardownResult(result, checked)
