"""Which cluster and which of its runs an operation is about, and how the hosts are reached."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

from ftcluster.ansible.inventory import inventory_path
from ftcluster.ansible.playbooks import Facts
from ftcluster.cluster.facts import ClusterFacts
from ftcluster.cluster.saved import Cluster, recall, recall_of
from ftcluster.errors import ClusterChanged, FtclusterError, UsageError
from ftcluster.launch.record import other_heads, recorded_run_hosts, recorded_runs
from ftcluster.launch.run_hosts import RunHosts, head_lost_hint, run_hosts_of
from ftcluster.launch.runs import find_run, list_runs
from ftcluster.progress.view import View
from ftcluster.provision.stages import run_stages
from ftcluster_common.run_state import RunState

WITHOUT_ROOT = (
    "there is no root here, so only a cluster of the login user is seen; for one that was set up "
    "with root, log in as a user with root, and give -K if sudo asks for a password"
)
# options of ansible-playbook that say how to reach the hosts: names and paths, no secrets, so they
# are saved with the cluster
CONNECTION = (
    "--user", "--private-key", "--become-password-file", "--connection-password-file",
    "--vault-password-file", "--vault-id",
)  # fmt: skip
SETUP = ("--limit", "--tags", "--skip-tags", "--extra-vars", "--forks", *CONNECTION)
AGAIN = 2  # times that a plan is made anew, because the cluster was another one
Result = TypeVar("Result")


@dataclass(frozen=True)
class Connection:
    """Which cluster is meant, and how its hosts are reached.

    Attributes:
        inventories: of a cluster that was set up from another control node; none: the one that
            was set up last from here.
        options: arguments of ansible-playbook, by their long names, each value a word of its own;
            `setup` saves those that say how to reach the hosts.
        passwords: arguments of ansible-playbook that nothing saves.
        cluster: the cluster itself, as `setup` has returned it, instead of its inventories.
    """

    inventories: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    passwords: tuple[str, ...] = ()
    cluster: Cluster | None = None

    @property
    def arguments(self) -> tuple[str, ...]:
        """All arguments of ansible-playbook."""
        return (*self.options, *self.passwords)

    def to(self, cluster: Cluster) -> tuple[str, ...]:
        """The arguments of ansible-playbook for a cluster: those of its setup, then these."""
        return (*cluster.options, *self.arguments)


def again(operation: Callable[[], Result], view: View) -> Result:
    """Do something, again where it was planned for what the cluster was.

    Raises:
        ClusterChanged: that was so each time.
        FtclusterError: it failed.
    """
    for _ in range(AGAIN):
        try:
            return operation()
        except ClusterChanged as error:
            view.say(f"{error.message}; planning again")
    return operation()


def remembered(options: Sequence[str]) -> tuple[str, ...]:
    """Those of CONNECTION among options, with paths made absolute."""
    found: dict[str, str] = {}  # the last of each counts
    for name, value in pairwise(options):
        if name in CONNECTION:
            is_file = name != "--user" and Path(value).exists()
            found[name] = str(Path(value).absolute()) if is_file else value
    return tuple(word for pair in found.items() for word in pair)


def cluster_of(connection: Connection, view: View) -> Cluster:
    """The cluster that is meant; of one that is named, only the hosts that answer.

    Raises:
        FtclusterError: no host answers or has a stack in use, or none has been set up from here.
    """
    if known := connection.cluster:  # others may have changed it since
        return recall_of(known.inventories) or known
    if not connection.inventories:
        return recall()
    paths = tuple(map(inventory_path, connection.inventories))
    found = run_stages(Facts(), paths, connection.arguments, view, unreachable=True)
    inventory = found.inventory
    hosts = tuple(found.facts[name] for name in inventory.cluster if name in found.facts)
    if hosts and not found.set_up:
        names = ", ".join(host.name for host in hosts)
        raise FtclusterError(
            f"no cluster is set up in {hosts[0].prefix} on {names}",
            "run ftcluster setup" if hosts[0].rank_user else WITHOUT_ROOT,
        )
    kept = remembered(connection.options)
    cluster = Cluster(inventory.paths, ClusterFacts(hosts), kept, inventory.pattern)
    # a head that does not answer has the record
    return cluster.with_record(found.records.get(inventory.head, ""))


def cluster_run_hosts(connection: Connection, view: View) -> RunHosts:
    """Where the runs of the cluster are that is meant; errors as of `cluster_of`."""
    return reached(run_hosts_of(cluster_of(connection, view)), connection)


def reached(run_hosts: RunHosts, connection: Connection) -> RunHosts:
    """The hosts with further arguments of ansible-playbook."""
    return replace(run_hosts, options=(*run_hosts.options, *connection.arguments))


def all_runs(run_hosts: RunHosts, view: View) -> list[RunState]:
    """The runs of a cluster's head, and of other heads that this control node has started.

    Raises:
        FtclusterError: the first head does not answer.
    """
    runs = {run.run: run for run in list_runs(run_hosts)}
    for other in other_heads(run_hosts):
        try:
            found = list_runs(replace(other, options=run_hosts.options))
        except FtclusterError as error:
            view.say(error.message)
        else:
            runs |= {one.run: one for one in found if one.hosts}
    return sorted(runs.values(), key=lambda run: run.started, reverse=True)


def find(connection: Connection, name: str, view: View) -> tuple[RunHosts, str]:
    """The run that is meant: where it is, and its id.

    Args:
        name: the run's id, or how it begins; "" for the newest run.

    Raises:
        FtclusterError: there is no such run, or its head does not answer.
    """
    recorded = recorded_runs(name) if name and not connection.inventories else []
    run = name if name in recorded else recorded[0] if len(recorded) == 1 else ""
    if run and (known := recorded_run_hosts(run)):
        return reached(known, connection), run
    run_hosts = cluster_run_hosts(connection, view)
    if name:
        found = find_run(run_hosts, name)
    else:
        runs = all_runs(run_hosts, view)
        if not runs:
            raise UsageError(f"there are no runs on {run_hosts.head}", "start one: ftcluster train")
        found = runs[0]
        known = recorded_run_hosts(found.run)
        run_hosts = reached(known, connection) if known else run_hosts
    if not found.hosts and found.state != "running":  # only the head of a run has its launch
        known = recorded_run_hosts(found.run)
        message = f"run {found.run} was not launched on {run_hosts.head}"
        if known and known.head not in run_hosts.hosts:
            message = f"{known.head}, the head of run {found.run}, does not answer"
        raise FtclusterError(message, head_lost_hint(found.run))
    return run_hosts, found.run
