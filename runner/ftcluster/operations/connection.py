"""Choose the cluster and the run that an operation works on, and connect to the hosts."""

import contextlib
import json
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

from ftcluster.ansible.inventory import BUNDLED_LOCALHOST, inventory_path
from ftcluster.ansible.playbooks import Facts
from ftcluster.cluster.facts import ClusterFacts
from ftcluster.cluster.saved import Cluster, recall, recall_of
from ftcluster.errors import ClusterChanged, FtclusterError, UsageError
from ftcluster.launch.record import recorded_run_hosts, recorded_runs
from ftcluster.launch.run_hosts import RunHosts, head_lost_hint, run_hosts_of
from ftcluster.launch.runs import MOST_ALIKE, list_everywhere, named_run
from ftcluster.progress.view import View
from ftcluster.provision.stages import run_stages
from ftcluster.text.host_names import short_names
from ftcluster_common.protocol.run_state import RunState

WITHOUT_ROOT = (
    "the login user cannot become root, so only clusters that this user set up are visible. To use "
    "a cluster that was set up with root, log in as a user who can become root, and pass -K if "
    "sudo asks for a password"
)
# options of ansible-playbook for reaching the hosts. The values are names and paths, never secrets,
# so `setup` saves these options with the cluster
CONNECTION = (
    "--user", "--private-key", "--become-password-file", "--connection-password-file",
    "--vault-password-file", "--vault-id",
)  # fmt: skip
# variables that select one of several clusters on the same hosts: later commands need them to
# select the same cluster
PLACE = ("ftcluster_prefix", "ftcluster_root", "ftcluster_user")
SETUP = ("--limit", "--tags", "--skip-tags", "--extra-vars", "--forks", *CONNECTION)
NEWEST = 20  # runs to list per head to find the newest run; active runs come first
AGAIN = 2  # number of times to plan again because the cluster has changed
Result = TypeVar("Result")


@dataclass(frozen=True)
class Connection:
    """The requested cluster, and the arguments for reaching its hosts.

    Attributes:
        inventories: inventories of a cluster that was set up from another control node; if empty,
            the cluster that was set up last from this control node is used.
        options: arguments of ansible-playbook. Option names are long, and each value is a separate
            argument. `setup` saves the options that CONNECTION lists.
        passwords: arguments of ansible-playbook that are never saved.
        cluster: a cluster that `setup` has returned. If set, `inventories` is ignored.
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
        """Return the cluster's saved ansible-playbook arguments, followed by the connection's."""
        return (*cluster.options, *self.arguments)


def this_machine() -> Connection:
    """Return the connection to this machine, even if a file in this folder is named localhost."""
    return Connection((str(BUNDLED_LOCALHOST),))


def again(operation: Callable[[], Result], view: View) -> Result:
    """Call an operation; repeat it if the cluster has changed since the operation was planned.

    Raises:
        ClusterChanged: the cluster has changed during every attempt.
        FtclusterError: the operation failed.
    """
    for _ in range(AGAIN):
        try:
            return operation()
        except ClusterChanged as error:
            view.say(f"{error.message}; planning again")
    return operation()


def remembered(options: Sequence[str]) -> tuple[str, ...]:
    """Return the options to save: CONNECTION options with absolute paths, and PLACE variables.

    >>> remembered(("--check", "--user", "ops", "--extra-vars", "a=1 ftcluster_prefix=/data"))
    ('--user', 'ops', '--extra-vars', 'ftcluster_prefix=/data')
    """
    by_name: dict[str, str] = {}  # the last value of each option counts
    for name, value in pairwise(options):
        if name in CONNECTION:
            is_file = name != "--user" and Path(value).exists()
            by_name[name] = str(Path(value).absolute()) if is_file else value
    return (*(word for pair in by_name.items() for word in pair), *_words(place_of(options)))


def place_of(options: Sequence[str]) -> dict[str, str]:
    """Return the PLACE variables that --extra-vars options set. Files (@FILE) are not read.

    >>> place_of(("--extra-vars", '{"ftcluster_prefix": "/a", "x": 1}', "--extra-vars", "@file"))
    {'ftcluster_prefix': '/a'}
    """
    place: dict[str, str] = {}
    for name, value in pairwise(options):
        if name == "--extra-vars":
            place |= {key: text for key, text in _variables(value).items() if key in PLACE}
    return place


def _variables(value: str) -> dict[str, str]:
    with contextlib.suppress(ValueError):  # Ansible itself reports an invalid value
        if value.lstrip().startswith("{"):
            return {key: str(text) for key, text in json.loads(value).items()}
        pairs = (word.partition("=") for word in shlex.split(value))
        return {key: text for key, equals, text in pairs if equals}
    return {}


def _words(variables: Mapping[str, str]) -> Iterator[str]:
    for key, value in variables.items():
        yield from ("--extra-vars", f"{key}={shlex.quote(value)}")


def cluster_of(connection: Connection, view: View) -> Cluster:
    """Return the requested cluster.

    If the connection names inventories, the cluster contains only the hosts that respond.

    Raises:
        FtclusterError: no host responds, no host has an active stack, or no cluster has been set up
            from this control node.
    """
    if saved := connection.cluster:  # another process may have changed the cluster since
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
    facts, head = ClusterFacts(hosts), inventory.head
    cluster = Cluster(inventory.paths, facts, kept, inventory.pattern, record_host=head)
    # the record is on the head, which may not respond
    return cluster.with_record(stages.records.get(inventory.head, ""))


def cluster_run_hosts(connection: Connection, view: View) -> RunHosts:
    """Return the hosts of the requested cluster's runs. This raises the errors of `cluster_of`."""
    return reached(run_hosts_of(cluster_of(connection, view)), connection)


def reached(run_hosts: RunHosts, connection: Connection) -> RunHosts:
    """Return the same hosts, with the connection's ansible-playbook arguments appended."""
    return replace(run_hosts, options=(*run_hosts.options, *connection.arguments))


def all_runs(
    run_hosts: RunHosts, view: View, beginnings: Sequence[str] = (), most: int = 0
) -> tuple[list[RunState], int]:
    """Return the runs of all heads of a cluster, and report the hosts that do not respond.

    The arguments and the result are the same as for `ftcluster.launch.runs.list_runs`.

    Raises:
        FtclusterError: the cluster's head does not respond.
    """
    runs, omitted, silent = list_everywhere(run_hosts, beginnings, most)
    if silent:
        view.say(
            f"no response from {short_names(silent)}, so runs with their head there are not listed"
        )
    return runs, omitted


def find(connection: Connection, name: str, view: View) -> tuple[RunHosts, str]:
    """Return the hosts of the requested run, and the run's id.

    Args:
        name: the run's id or the beginning of its id; "" for the newest run.

    Raises:
        FtclusterError: there is no such run, or its head does not respond.
    """
    recorded = recorded_runs(name) if name and not connection.inventories else []
    run = name if name in recorded else recorded[0] if len(recorded) == 1 else ""
    if run and (at_launch := recorded_run_hosts(run)):
        return reached(at_launch, connection), run
    run_hosts = cluster_run_hosts(connection, view)
    runs, _ = all_runs(run_hosts, view, (name,) if name else (), MOST_ALIKE if name else NEWEST)
    if not name and not runs:
        raise UsageError(f"there are no runs on {run_hosts.head}", "to start one: ftcluster train")
    state = named_run(name, runs, short_names(run_hosts.hosts)) if name else runs[0]
    at_launch = None if name else recorded_run_hosts(state.run)
    if at_launch:
        run_hosts = reached(at_launch, connection)
    elif state.hosts:
        run_hosts = run_hosts.headed_by(state.hosts[0])
    if not state.hosts and state.state != "running":  # only the head stores a launch
        at_launch = recorded_run_hosts(state.run)
        message = f"run {state.run} was not launched on {run_hosts.head}"
        if at_launch and at_launch.head not in run_hosts.hosts:
            message = f"{at_launch.head}, the head of run {state.run}, does not respond"
        raise FtclusterError(message, head_lost_hint(state.run))
    return run_hosts, state.run
