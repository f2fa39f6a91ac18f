"""Turn hosts into a cluster, roll its stack back, and remove the cluster again."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ftcluster.ansible.inventory import BUNDLED_LOCALHOST, LOCALHOST, inventory_path
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
    "firewall": "not ready, because without root there is no firewall: anyone who can reach the "
    "training ports can join a run",
    "tcmalloc": "tcmalloc is missing, so a training step takes 15 to 35 % longer",
}
CHECK = "--check"  # option of ansible-playbook: change nothing


@dataclass(frozen=True)
class SetupRequest:
    """The cluster to set up, and its stack.

    Attributes:
        connection: connection with the inventories. Without inventories, the inventories of the
            cluster that was set up last are used, unless Ansible's configuration names others.
        stack: name of a stack; "auto" for the first stack that the hosts support; "" for the
            inventory's stack or the cluster's current stack.
        bundle: path of a file from `ftcluster bundle` to install from; "" to download packages.
        allow_yanked: True if yanked releases are accepted.
        allow_unverified: True if packages without a hash in a lock are accepted.
        downgrade: True if this version of ftcluster may replace a newer version on the hosts.
        prune: True if all stacks except the current and the previous stack are removed.
        rollback: True to switch all hosts back to the previous stack, and do nothing else.
        accept_new_host_keys: True to store the SSH keys of new hosts without asking.
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
        UsageError: there is no such stack, bundle or inventory, or it is not clear which cluster is
            meant.
        FtclusterError: a host failed or does not respond; lists each such host with its reason.
        Interrupted: the user stopped the setup.
    """
    connection, accept_new = request.connection, request.accept_new_host_keys
    inventories = find_inventories(connection.inventories, view)
    playbook = Setup() if request.rollback else request.playbook()
    options, passwords = connection.options, connection.passwords
    before = recall_of(inventories)
    if before and not connection.inventories:  # reuse the connection options of the last setup
        options = (*before.options, *options)
    elif before:
        for key, value in place_of(before.options).items():
            if key not in place_of(options):
                view.say(
                    f"note: the last setup of this inventory used -e {key}={value}; this setup "
                    "uses the inventory's value. To set up that cluster again: "
                    f"{_setup_again(before)}"
                )
    if damaged := damage():
        view.say(f"{damaged}; reading the hosts again")
    checked = CHECK in options
    if not request.rollback:
        replaced = None if damaged else _saved_or_none()
        result = set_up(inventories, options, view, passwords, playbook, accept_new)
        if replaced and not recall_of(replaced.inventories):
            view.say(
                f"note: commands now use this cluster instead of {_inventories(replaced)}; "
                f"to use that cluster again: {_setup_again(replaced)}"
            )
        return SetupResult(result, checked)
    result = run_stages(
        Rollback(), inventories, (*options, *passwords), view, accept_new=accept_new
    )
    if not checked:
        change(inventories, lambda saved: saved and _with_stack(saved, result))
    return SetupResult(result, checked, rollback=True)


def find_inventories(requested: Sequence[str], view: View) -> tuple[Path, ...]:
    """Return the paths of the requested inventories.

    If none is requested, print and return the inventories of the cluster that was set up last.

    Raises:
        UsageError: no inventory is requested, and it is not clear which cluster is meant; see
            `cluster_without_inventory`.
        FtclusterError: no inventory is requested, and the saved cluster cannot be read.
    """
    if requested:
        return tuple(map(inventory_path, requested))
    cluster = cluster_without_inventory(_saved_or_none(), *inventories_of_ansible())
    hosts = short_names([host.name for host in cluster.facts.hosts])
    view.say(
        f"inventory: {_inventories(cluster)} ({hosts}), the cluster that was set up last from here"
    )
    return cluster.inventories


def _saved_or_none() -> Cluster | None:
    """Return the cluster that was set up last; None if there is none.

    Raises:
        FtclusterError: the saved cluster cannot be read.
    """
    try:
        return recall()
    except NoCluster:
        return None


def cluster_without_inventory(
    saved: Cluster | None, configured: Sequence[str], setting: str
) -> Cluster:
    """Return the cluster that `ftcluster setup` without an inventory sets up.

    This is the cluster that was set up last, unless Ansible's configuration names other
    inventories.

    Args:
        saved: the cluster that was set up last; None if there is none.
        configured: paths of the inventories that Ansible's configuration names.
        setting: file or variable with this configuration.

    Raises:
        UsageError: no cluster was set up, or the configuration names other inventories; the hint
            lists the commands to choose from.
    """
    names = ", ".join(configured)
    if saved and (not configured or _same_files(saved.inventories, configured)):
        return saved
    this_machine = f"to set up this machine: ftcluster setup {LOCALHOST}"
    if not saved and not configured:
        raise UsageError(
            "which hosts? No cluster has been set up from here",
            f"to set up an inventory: ftcluster setup inventory.ini; {this_machine}",
        )
    theirs = f"to set up {names}: {_command('setup', configured)}"
    if not saved:
        raise UsageError(f"which hosts? {setting} names {names}", f"{theirs}; {this_machine}")
    last = _inventories(saved)
    raise UsageError(
        f"which cluster? {setting} names {names}, but the cluster that was set up last from here "
        f"is {last}",
        f"{theirs}; to set up {last}: {_setup_again(saved)}",
    )


def _same_files(inventories: Sequence[Path], configured: Sequence[str]) -> bool:
    """Return True if both lists name the same files in the same order, after resolving links."""
    return [path.resolve() for path in inventories] == [Path(name).resolve() for name in configured]


def _as_typed(path: Path) -> str:
    """Return the argument for an inventory; the bundled inventory is `localhost`."""
    return LOCALHOST if path == BUNDLED_LOCALHOST else str(path)


def _inventories(cluster: Cluster) -> str:
    """Return the cluster's inventories as one string for messages."""
    return ", ".join(map(_as_typed, cluster.inventories))


def _setup_again(cluster: Cluster) -> str:
    """Return the command that sets up a saved cluster with its saved options."""
    return _command("setup", [_as_typed(path) for path in cluster.inventories], cluster.options)


def _command(verb: str, inventories: Sequence[str], options: Sequence[str] = ()) -> str:
    """Return the command line of `setup` or `teardown` for inventories."""
    flags = [] if len(inventories) == 1 else ["-i"]
    arguments = [word for inventory in inventories for word in (*flags, inventory)]
    return f"ftcluster {verb} {shlex.join([*arguments, *options])}"


def set_up(
    inventories: Sequence[Path],
    options: tuple[str, ...],
    view: View,
    passwords: tuple[str, ...] = (),
    playbook: Setup = Setup(),  # noqa: B008 - the default is immutable
    accept_new: bool = False,
) -> StagesResult:
    """Run the playbook `setup` and save the cluster.

    Args:
        passwords: additional arguments of ansible-playbook, which are not saved.
        playbook: the playbook, with the variables that select the stack.
        accept_new: True to store the SSH keys of new hosts without asking.

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

    def updated(before: Cluster | None) -> Cluster:
        by_name = {name: replace(host, stack=result.stack) for name, host in result.facts.items()}
        if before:
            by_name = {host.name: host for host in before.facts.hosts} | by_name
        hosts = tuple(by_name[name] for name in inventory.cluster if name in by_name)
        kept, pattern = remembered(options), inventory.pattern
        cluster = Cluster(inventory.paths, ClusterFacts(hosts), kept, pattern)
        # --limit may exclude the head
        record = before.record if before else ""
        return cluster.with_record(result.records.get(cluster.facts.head.name, record))

    change(inventory.paths, updated)


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
            f"{host}: {path} was not removed, and the next account with its user id would own it; "
            "remove it, or make root its owner (chown -R root)"
            for host, paths in self.stages.orphans.items()
            for path in paths
        ]
        return [*orphans, f"{done} {hosts}, {duration(self.stages.seconds)}"]


def _last_set_up() -> str:
    """Return a hint: the command that tears down the cluster that was set up last from here."""
    try:
        command = _command("teardown", [_as_typed(path) for path in recall().inventories])
    except FtclusterError:
        return "ftcluster teardown INVENTORY"
    return f"for the cluster that was set up last from here: {command}"


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
