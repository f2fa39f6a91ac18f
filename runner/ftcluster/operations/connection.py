"""Which cluster and which of its runs an operation is about, and how the hosts are reached."""

import contextlib
import json
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from ftcluster_common.protocol.run_state import RunState

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
# variables that say which cluster of the hosts is meant: later commands without them would be about
# another one
PLACE = ("ftcluster_prefix", "ftcluster_root", "ftcluster_user")
SETUP = ("--limit", "--tags", "--skip-tags", "--extra-vars", "--forks", *CONNECTION)
NEWEST = 20  # runs of each head, to find the newest of all: running ones come first
AGAIN = 2  # times that a plan is made anew, because the cluster was another one
Result = TypeVar("Result")


@dataclass(frozen=True)
class Connection:
    """Which cluster is meant, and how its hosts are reached.

    Attributes:
        inventories: those of a cluster that was set up from another control node; none: the
            one that was set up last from here.
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
    """Those of CONNECTION among options, with paths made absolute, and variables of PLACE.

    >>> remembered(("--check", "--user", "ops", "--extra-vars", "a=1 ftcluster_prefix=/data"))
    ('--user', 'ops', '--extra-vars', 'ftcluster_prefix=/data')
    """
    by_name: dict[str, str] = {}  # the last of each counts
    for name, value in pairwise(options):
        if name in CONNECTION:
            is_file = name != "--user" and Path(value).exists()
            by_name[name] = str(Path(value).absolute()) if is_file else value
    return (*(word for pair in by_name.items() for word in pair), *_words(place_of(options)))


def place_of(options: Sequence[str]) -> dict[str, str]:
    """Variables of PLACE that options of ansible-playbook set; not those of files.

    >>> place_of(("--extra-vars", '{"ftcluster_prefix": "/a", "x": 1}', "--extra-vars", "@file"))
    {'ftcluster_prefix': '/a'}
    """
    found: dict[str, str] = {}
    for name, value in pairwise(options):
        if name == "--extra-vars":
            found |= {key: one for key, one in _variables(value).items() if key in PLACE}
    return found


def _variables(value: str) -> dict[str, str]:
    with contextlib.suppress(ValueError):  # which Ansible says of it
        if value.lstrip().startswith("{"):
            return {key: str(one) for key, one in json.loads(value).items()}
        pairs = (word.partition("=") for word in shlex.split(value))
        return {key: one for key, equals, one in pairs if equals}
    return {}


def _words(variables: Mapping[str, str]) -> Iterator[str]:
    for key, value in variables.items():
        yield from ("--extra-vars", f"{key}={shlex.quote(value)}")


def cluster_of(connection: Connection, view: View) -> Cluster:
    """The cluster that is meant; of one that is named, only the hosts that answer.

    Raises:
        FtclusterError: no host answers or has a stack in use, or none has been set up from here.
    """
    if saved := connection.cluster:  # others may have changed it since
        return recall_of(saved.inventories) or saved
    if not connection.inventories:
        return recall()
    paths = tuple(map(inventory_path, connection.inventories))
    stages = run_stages(Facts(), paths, connection.arguments, view, unreachable=True)
    inventory = stages.inventory
    hosts = tuple(stages.facts[name] for name in inventory.cluster if name in stages.facts)
    if hosts and not stages.set_up:
        names = ", ".join(host.name for host in hosts)
        raise FtclusterError(
            f"no cluster is set up in {hosts[0].prefix} on {names}",
            "run ftcluster setup" if hosts[0].rank_user else WITHOUT_ROOT,
        )
    kept = remembered(connection.options)
    cluster = Cluster(inventory.paths, ClusterFacts(hosts), kept, inventory.pattern)
    # a head that does not answer has the record
    return cluster.with_record(stages.records.get(inventory.head, ""))


def cluster_run_hosts(connection: Connection, view: View) -> RunHosts:
    """Where the runs of the cluster are that is meant; errors as of `cluster_of`."""
    return reached(run_hosts_of(cluster_of(connection, view)), connection)


def reached(run_hosts: RunHosts, connection: Connection) -> RunHosts:
    """The hosts with further arguments of ansible-playbook."""
    return replace(run_hosts, options=(*run_hosts.options, *connection.arguments))


def all_runs(
    run_hosts: RunHosts, view: View, beginnings: Sequence[str] = (), most: int = 0
) -> tuple[list[RunState], int]:
    """The runs of a cluster's head, and of other heads that this control node has started.

    Args and result as of `list_runs`.

    Raises:
        FtclusterError: the first head does not answer.
    """
    listed, left = list_runs(run_hosts, beginnings, most)
    runs = {one.run: one for one in listed}
    for other in other_heads(run_hosts):
        try:
            found, more = list_runs(replace(other, options=run_hosts.options), beginnings, most)
        except FtclusterError as error:
            view.say(error.message)
        else:
            runs |= {one.run: one for one in found if one.hosts}
            left += more
    return sorted(runs.values(), key=lambda run: run.started, reverse=True), left


def find(connection: Connection, name: str, view: View) -> tuple[RunHosts, str]:
    """The run that is meant: where it is, and its id.

    Args:
        name: the run's id, or how it begins; "" for the newest run.

    Raises:
        FtclusterError: there is no such run, or its head does not answer.
    """
    recorded = recorded_runs(name) if name and not connection.inventories else []
    run = name if name in recorded else recorded[0] if len(recorded) == 1 else ""
    if run and (at_launch := recorded_run_hosts(run)):
        return reached(at_launch, connection), run
    run_hosts = cluster_run_hosts(connection, view)
    if name:
        state = find_run(run_hosts, name)
    else:
        runs, _ = all_runs(run_hosts, view, most=NEWEST)
        if not runs:
            raise UsageError(f"there are no runs on {run_hosts.head}", "start one: ftcluster train")
        state = runs[0]
        at_launch = recorded_run_hosts(state.run)
        run_hosts = reached(at_launch, connection) if at_launch else run_hosts
    if not state.hosts and state.state != "running":  # only the head of a run has its launch
        at_launch = recorded_run_hosts(state.run)
        message = f"run {state.run} was not launched on {run_hosts.head}"
        if at_launch and at_launch.head not in run_hosts.hosts:
            message = f"{at_launch.head}, the head of run {state.run}, does not answer"
        raise FtclusterError(message, head_lost_hint(state.run))
    return run_hosts, state.run
