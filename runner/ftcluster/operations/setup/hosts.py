"""List, add, remove, drain and return the hosts of a cluster."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from ftcluster.ansible.inventory import HOSTS_VARIABLE, Inventory, pattern_of, read_inventory
from ftcluster.ansible.playbooks import Setup, Teardown
from ftcluster.cluster.record import Drained, with_drained
from ftcluster.cluster.saved import Cluster, change, recall
from ftcluster.errors import FtclusterError, InventoryError
from ftcluster.launch.run_hosts import run_hosts_of
from ftcluster.operations.connection import Connection, all_runs
from ftcluster.operations.result import Result
from ftcluster.operations.setup.setup import set_up
from ftcluster.progress.view import View
from ftcluster.provision.shared import change_record
from ftcluster.provision.stages import StagesResult, run_stages
from ftcluster.text.plural import counted
from ftcluster.text.table import aligned

# states of hosts as of the last setup: `show` contacts no host
HEAD, SET_UP, DRAINED, NEW = "head", "set up", "drained", "not set up"
MOST_RUNNING = 200  # number of runs to list; active runs come first
NO_REASON = "no reason was given"


@dataclass(frozen=True)
class HostsRequest:
    """A change to the hosts of the cluster that was set up last.

    Attributes:
        names: names of the hosts in the inventory.
        connection: arguments for reaching the hosts, in addition to the saved arguments.
        why: the reason that plans show for a drained host.
        teardown: True if `remove` also removes everything that setup installed on the hosts.
        accept_new_host_keys: True if `add` stores the SSH keys of new hosts without asking.
    """

    names: tuple[str, ...]
    connection: Connection = field(default_factory=Connection)
    why: str = NO_REASON
    teardown: bool = False
    accept_new_host_keys: bool = False


def show() -> Result:
    """Return the hosts of the cluster that was set up last, and other hosts of its inventory.

    Raises:
        FtclusterError: no cluster has been set up from this control node.
    """
    cluster = recall()
    rows = [*_rows(cluster), *({"name": name, "state": NEW} for name in _not_set_up(cluster))]
    where = ", ".join(map(str, cluster.inventories))
    table = [("host", "state", "address", "CPU", "cores", "memory", "stack")]
    for row in rows:
        memory = f"{row['memory_bytes'] / 1e9:.0f} GB" if "memory_bytes" in row else ""
        state = row["state"]
        if state == DRAINED:
            state += f" since {row['since']}: {row['why']}"
        table.append(
            (row["name"], state, row.get("address", ""), row.get("cpu", ""),
             str(row.get("cores", "")), memory, row.get("stack", ""))
        )  # fmt: skip
    document = {"inventory": where, "hosts": rows, "as_of": cluster.as_of}
    lines = [*aligned(table), "", f"inventory: {where}"]
    if cluster.as_of:
        lines.append(f"as of {cluster.as_of}; each launch reads the current record on the head")
    return Result(document, tuple(lines))


def add(request: HostsRequest, view: View) -> Result:
    """Set up hosts of the inventory and make them part of the cluster.

    Raises:
        FtclusterError: a host is not in the inventory, is already part of the cluster, fails, or
            does not respond.
    """
    names, cluster = list(request.names), recall()
    options, passwords = request.connection.options, request.connection.passwords
    members = {host.name for host in cluster.facts.hosts}
    everyone = _everyone(cluster, options).cluster
    where = ", ".join(map(str, cluster.inventories))
    if unknown := [name for name in names if name not in everyone]:
        raise FtclusterError(
            f"inventory {where} has no host {', '.join(unknown)}",
            f"add a line to the inventory: {unknown[0]} ansible_host=ADDRESS",
        )
    if existing := [name for name in names if name in members]:
        raise FtclusterError(
            f"already part of the cluster: {', '.join(existing)}",
            f"to repair it: ftcluster setup --limit {pattern_of(existing)}; to use a drained host "
            "again: ftcluster hosts return HOST",
        )
    hosts = [name for name in everyone if name in members or name in names]
    arguments = (*cluster.options, *options, *_pattern(cluster, options, hosts))
    limit = ("--limit", pattern_of(names))
    # the head comes first, because the new hosts are verified together with the head
    stack = _stack_of(_update_all(cluster, "system", arguments, view, passwords))
    accept_new, connection_options = request.accept_new_host_keys, (*arguments, *limit)
    set_up(cluster.inventories, connection_options, view, passwords, stack, accept_new)
    _update_all(cluster, "mesh,verify", arguments, view, passwords, stack)
    text = f"added: {', '.join(names)}; the cluster now has {counted(len(hosts), 'host')}"
    return Result({"state": "done", "added": names, "hosts": hosts}, (text,))


def remove(request: HostsRequest, view: View) -> Result:
    """Remove hosts from the cluster. The removed hosts may be switched off.

    Raises:
        FtclusterError: a host is not part of the cluster, is its head, or is used by a run; or
            another host failed or does not respond.
    """
    cluster = recall()
    names = _of_cluster(request.names, cluster, "removed")
    options, passwords = request.connection.options, request.connection.passwords
    remaining = [host.name for host in cluster.facts.hosts if host.name not in names]
    pattern = _pattern(cluster, options, remaining)
    connection_options = request.connection.to(cluster)
    run_hosts = replace(run_hosts_of(cluster), options=connection_options)
    for run in all_runs(run_hosts, view, most=MOST_RUNNING)[0]:
        used = [name for name in names if name in run.hosts]
        if run.state == "running" and used:
            raise FtclusterError(
                f"run {run.run} uses {', '.join(used)}",
                f"stop the run (ftcluster stop {run.run}) or wait until it ends; to keep new runs "
                f"off these hosts until then: ftcluster hosts drain {' '.join(used)}",
            )
    if request.teardown:
        limit = ("--limit", pattern_of(names))
        run_stages(Teardown(), cluster.inventories, (*connection_options, *limit), view)
    named = pattern[1].partition("=")[2] if pattern else cluster.pattern
    change(cluster.inventories, lambda saved: saved and _with_only(saved, remaining, named))
    arguments = (*cluster.options, *options, *pattern)
    stack = _stack_of(_update_all(cluster, "system", arguments, view, passwords))
    _update_all(cluster, "mesh,verify", arguments, view, passwords, stack)
    if gone := {name: None for name in names if name in cluster.drained}:
        change_record(cluster, with_drained(gone), connection_options, view)
    stays = ""
    if not request.teardown:
        stays = (
            f"the files that setup installed stay on {', '.join(names)}, and the head may still "
            "log in there; to remove the files and the access: ftcluster teardown "
            f"{' '.join(f'-i {path}' for path in cluster.inventories)} "
            f"-e {HOSTS_VARIABLE}=all --limit {pattern_of(names)}"
        )
    text = f"removed: {', '.join(names)}; the cluster now has {counted(len(remaining), 'host')}"
    document = {"state": "done", "removed": names, "hosts": remaining, "stays": stays}
    return Result(document, (text, *([stays] if stays else [])))


def drain(request: HostsRequest, view: View) -> Result:
    """Drain hosts: new runs do not use them. The hosts stay set up, and their runs continue.

    Raises:
        FtclusterError: a host is not part of the cluster or is its head, or the head does not
            respond.
    """
    cluster = recall()
    names = _of_cluster(request.names, cluster, "drained")
    drained = Drained(request.why, f"{datetime.now(UTC):%Y-%m-%d}")
    _change_drained(request.connection, cluster, dict.fromkeys(names, drained), view)
    text = f"new runs skip {', '.join(names)}; active runs on them continue (ftcluster ps)"
    return Result({"state": "done", "drained": names, "why": drained.why}, (text,))


def give_back(request: HostsRequest, view: View) -> Result:
    """Undo `drain`: let new runs use the hosts again.

    Raises:
        FtclusterError: a host is not drained, or the head does not respond.
    """
    cluster, names = recall(), list(request.names)
    # another control node may have drained the hosts: fetch the head's record
    if any(name not in cluster.drained for name in names):
        cluster = _change_drained(request.connection, cluster, {}, view)
    if others := [name for name in names if name not in cluster.drained]:
        drained = ", ".join(cluster.drained) or "none"
        raise FtclusterError(f"not drained: {', '.join(others)}", f"drained hosts: {drained}")
    _change_drained(request.connection, cluster, dict.fromkeys(names), view)
    text = f"new runs use {', '.join(names)} again"
    return Result({"state": "done", "returned": names}, (text,))


def _change_drained(
    connection: Connection, cluster: Cluster, names: Mapping[str, Drained | None], view: View
) -> Cluster:
    """Drain the hosts in `names`, or return them to use if their value is None.

    Return the changed cluster.

    The change is saved in the head's record, so all control nodes see it.
    """
    return change_record(cluster, with_drained(names), connection.to(cluster), view)


def _rows(cluster: Cluster) -> list[dict[str, Any]]:
    rows = []
    for host in cluster.facts.hosts:
        drained = cluster.drained.get(host.name)
        state = HEAD if host is cluster.facts.head else DRAINED if drained else SET_UP
        generation = host.cpu_generation
        rows.append(
            {
                "name": host.name,
                "state": state,
                **({"why": drained.why, "since": drained.since} if drained else {}),
                "address": host.network_address,
                "cpu": generation if generation not in ("", "other") else host.cpu_model,
                "cores": host.cores,
                "memory_bytes": host.memory_bytes,
                "stack": host.stack,
            }
        )
    return rows


def _not_set_up(cluster: Cluster) -> list[str]:
    """Return the hosts of the inventory that are not part of the cluster."""
    try:
        everyone = _everyone(cluster, ())
    except InventoryError:
        return []  # the inventory was moved, or needs a password
    members = {host.name for host in cluster.facts.hosts}
    return [name for name in everyone.cluster if name not in members]


def _everyone(cluster: Cluster, options: Sequence[str]) -> Inventory:
    """Return all hosts of the inventories, regardless of ftcluster_hosts.

    Raises:
        InventoryError: the inventories cannot be read.
    """
    arguments = (*cluster.options, *options, "--extra-vars", f"{HOSTS_VARIABLE}=all")
    return read_inventory(cluster.inventories, arguments)


def _with_only(cluster: Cluster, names: Sequence[str], pattern: str) -> Cluster:
    """Return the cluster with only the hosts in `names`."""
    hosts = tuple(host for host in cluster.facts.hosts if host.name in names)
    drained = {name: drain for name, drain in cluster.drained.items() if name in names}
    facts = replace(cluster.facts, hosts=hosts)
    return replace(cluster, facts=facts, drained=drained, pattern=pattern)


def _update_all(
    cluster: Cluster,
    stages: str,
    options: tuple[str, ...],
    view: View,
    passwords: tuple[str, ...],
    stack: Setup = Setup(),  # noqa: B008 - the default is immutable
) -> StagesResult:
    """Run stages of the playbook on all hosts of the cluster.

    Args:
        stages: comma-separated tags; `system` updates the hosts' firewalls.

    Raises:
        FtclusterError: a host failed or does not respond.
    """
    return set_up(cluster.inventories, (*options, "--tags", stages), view, passwords, stack)


def _stack_of(result: StagesResult) -> Setup:
    """Return the playbook for the head's current stack.

    The inventory may name another stack, but adding or removing hosts must not change the stack.
    """
    return Setup(torch_stack_name=result.facts[result.inventory.head].stack)


def _pattern(cluster: Cluster, options: Sequence[str], hosts: Sequence[str]) -> tuple[str, ...]:
    """Return the option that selects the cluster's hosts; () if the saved pattern selects them.

    Raises:
        FtclusterError: the inventory sets a pattern that selects other hosts.
    """
    connection_options = (*cluster.options, *options)
    if set(read_inventory(cluster.inventories, connection_options, cluster.pattern).cluster) == set(
        hosts
    ):
        return ()
    own_pattern = read_inventory(cluster.inventories, connection_options).pattern
    if own_pattern:
        raise FtclusterError(
            f"the inventory itself sets which hosts form the cluster: "
            f"{HOSTS_VARIABLE}={own_pattern}",
            f"change {HOSTS_VARIABLE} in the inventory so that it selects {', '.join(hosts)}",
        )
    return ("--extra-vars", f"{HOSTS_VARIABLE}={pattern_of(hosts)}")


def _of_cluster(requested: Sequence[str], cluster: Cluster, done: str) -> list[str]:
    """Return the requested host names, after checking that each host can be removed or drained.

    Args:
        done: participle of the action for the error, such as "removed".

    Raises:
        FtclusterError: a name is not a host of the cluster, or is its head.
    """
    names, members = list(requested), [host.name for host in cluster.facts.hosts]
    if unknown := [name for name in names if name not in members]:
        raise FtclusterError(
            f"the cluster has no host {', '.join(unknown)}", f"its hosts are {', '.join(members)}"
        )
    if members[0] in names:
        raise FtclusterError(
            f"{members[0]} is the head, which starts all runs, so it cannot be {done}",
            "to make another host the head, put it into the group head of the inventory, and run "
            "ftcluster setup",
        )
    return names
