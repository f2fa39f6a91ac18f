"""`ftcluster hosts`: the hosts of the cluster that was set up last, and changes of it."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from ftcluster.ansible.inventory import HOSTS_VARIABLE, Inventory, pattern_of, read_inventory
from ftcluster.ansible.options import CONNECTION, add_options, ask_passwords, passed_on
from ftcluster.ansible.playbooks import Setup, Teardown
from ftcluster.cli.arguments import add_accept_new_host_keys, add_output, print_result
from ftcluster.cli.help import example_lines
from ftcluster.cli.setup import setup
from ftcluster.cluster.record import Drained, with_drained
from ftcluster.cluster.saved import Cluster, change, recall
from ftcluster.errors import FtclusterError, InventoryError, UsageError
from ftcluster.launch.place import place_of
from ftcluster.launch.runs import list_runs
from ftcluster.progress.view import View, make_view
from ftcluster.provision.shared import change_record
from ftcluster.provision.stages import StagesResult, run_stages
from ftcluster.text.plural import counted
from ftcluster.text.table import aligned

OPTIONS = ("--extra-vars", "--forks", *CONNECTION)
HEAD, READY, DRAINED, NEW = "head", "ready", "drained", "not set up"
NO_REASON = "no reason was given"


def add_parser(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "hosts",
        help="the cluster's hosts; add, remove, drain or return some",
        description="Without further words, lists the hosts of the cluster that was set up last.",
        usage="ftcluster hosts [add|remove|drain|return] [HOST ...] [options]",
    )
    add_output(parser, verbose="")
    parser.set_defaults(run=show)
    kinds = parser.add_subparsers(metavar="WHAT", required=False)
    for name, run, what, more in (
        ("add", add, "set up hosts of the inventory and make them part of the cluster",
         "Sets up hosts that stand in the inventory and lets the others know them. Runs that are "
         "active go on without them."),
        ("remove", remove, "take hosts out of the cluster",
         "Takes hosts out of the cluster; the others forget them. Hosts that are off may be "
         "removed. Refused while a run uses one of them."),
        ("drain", drain, "have new runs leave hosts out",
         "New runs leave the hosts out, which stay set up; runs that use them go on."),
        ("return", give_back, "have new runs use drained hosts again",
         "Undoes drain."),
    ):  # fmt: skip
        kind = kinds.add_parser(
            name, help=what, description=more, usage=f"ftcluster hosts {name} HOST ... [options]"
        )
        kind.add_argument("words", nargs="*", metavar="HOST", help="a name of the inventory")
        if name == "remove":
            kind.add_argument(
                "--teardown", action="store_true", help="also remove what setup left on them"
            )
        if name == "add":
            add_accept_new_host_keys(kind)
        if name == "drain":
            kind.add_argument("--why", default=NO_REASON, metavar="TEXT", help="plans show it")
        add_output(kind, verbose="print one line per task and host")
        add_options(kind, OPTIONS)
        kind.set_defaults(run=run, parser=kind)
        kind.more = example_lines(f"hosts {name}")


def show(options: argparse.Namespace) -> int:
    """List the hosts; returns the exit code."""
    if options.words:
        raise UsageError(
            f"hosts does not know '{options.words[0]}'", "it knows add, remove, drain and return"
        )
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
    found = {"inventory": where, "hosts": rows, "as_of": cluster.as_of}
    lines = [*aligned(table), "", f"inventory: {where}"]
    lines += [f"as of {cluster.as_of}; each launch asks the head"] if cluster.as_of else []
    print_result(options, found, "\n".join(lines))
    return 0


def _rows(cluster: Cluster) -> list[dict[str, Any]]:
    rows = []
    for host in cluster.facts.hosts:
        drained = cluster.drained.get(host.name)
        state = HEAD if host is cluster.facts.head else DRAINED if drained else READY
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
    """The hosts of the inventory that are not part of the cluster."""
    try:
        everyone = _everyone(cluster, ())
    except InventoryError:
        return []  # it was moved, or asks for a password
    known = {host.name for host in cluster.facts.hosts}
    return [name for name in everyone.cluster if name not in known]


def _everyone(cluster: Cluster, options: Sequence[str]) -> Inventory:
    """All hosts of the inventories, whatever ftcluster_hosts says.

    Raises:
        InventoryError: they cannot be read.
    """
    every = (*cluster.options, *options, "--extra-vars", f"{HOSTS_VARIABLE}=all")
    return read_inventory(cluster.inventories, every)


def add(options: argparse.Namespace) -> int:
    """Set up hosts and make them part of the cluster; returns the exit code."""
    names, cluster = _names(options), recall()
    given = passed_on(vars(options))
    known = {host.name for host in cluster.facts.hosts}
    everyone = _everyone(cluster, given).cluster
    where = ", ".join(map(str, cluster.inventories))
    if unknown := [name for name in names if name not in everyone]:
        raise FtclusterError(
            f"inventory {where} has no host {', '.join(unknown)}",
            f"write it there: {unknown[0]} ansible_host=ADDRESS",
        )
    if there := [name for name in names if name in known]:
        raise FtclusterError(
            f"{', '.join(there)}: part of the cluster already",
            f"ftcluster setup --limit {pattern_of(there)} repairs it; ftcluster hosts return HOST "
            "takes back one that is drained",
        )
    hosts = [name for name in everyone if name in known or name in names]
    arguments = (*cluster.options, *given, *_pattern(cluster, given, hosts))
    view = make_view(options.verbose)
    with ask_passwords(vars(options)) as passwords:
        limit = ("--limit", pattern_of(names))
        # first, because the new hosts are verified together with the head
        stack = _stack_of(_tell_all(cluster, "system", arguments, view, passwords))
        accept_new, reach = options.accept_new_host_keys, (*arguments, *limit)
        setup(cluster.inventories, reach, view, passwords, stack, accept_new)
        _tell_all(cluster, "mesh,verify", arguments, view, passwords, stack)
    text = f"{', '.join(names)}: part of the cluster, which has {counted(len(hosts), 'host')}"
    print_result(options, {"state": "done", "added": names, "hosts": hosts}, text)
    return 0


def remove(options: argparse.Namespace) -> int:
    """Take hosts out of the cluster; returns the exit code."""
    cluster = recall()
    names = _of_cluster(options, cluster, "removed")
    given = passed_on(vars(options))
    left = [host.name for host in cluster.facts.hosts if host.name not in names]
    pattern = _pattern(cluster, given, left)
    view = make_view(options.verbose)
    with ask_passwords(vars(options)) as passwords:
        reach = (*cluster.options, *given, *passwords)
        place = replace(place_of(cluster), options=reach)
        for run in list_runs(place):
            used = [name for name in names if name in run.hosts]
            if run.state == "running" and used:
                raise FtclusterError(
                    f"run {run.run} uses {', '.join(used)}",
                    f"stop it (ftcluster stop {run.run}) or wait; until then keep new runs away: "
                    f"ftcluster hosts drain {' '.join(used)}",
                )
        if options.teardown:
            limit = ("--limit", pattern_of(names))
            run_stages(Teardown(), cluster.inventories, (*reach, *limit), view)
        named = pattern[1].partition("=")[2] if pattern else cluster.pattern
        change(cluster.inventories, lambda saved: saved and _without(saved, left, named))
        words = (*cluster.options, *given, *pattern)
        stack = _stack_of(_tell_all(cluster, "system", words, view, passwords))
        _tell_all(cluster, "mesh,verify", words, view, passwords, stack)
        if gone := {name: None for name in names if name in cluster.drained}:
            change_record(cluster, with_drained(gone), reach, view)
    stays = ""
    if not options.teardown:
        stays = (
            f"what setup left stays on {', '.join(names)}, and the head may still log in there; to "
            f"remove it: ftcluster teardown {' '.join(f'-i {one}' for one in cluster.inventories)} "
            f"-e {HOSTS_VARIABLE}=all --limit {pattern_of(names)}"
        )
    text = f"removed: {', '.join(names)}; the cluster has {counted(len(left), 'host')}"
    found = {"state": "done", "removed": names, "hosts": left, "stays": stays}
    print_result(options, found, "\n".join([text, *([stays] if stays else [])]))
    return 0


def _without(cluster: Cluster, left: Sequence[str], pattern: str) -> Cluster:
    """The cluster with these of its hosts only."""
    hosts = tuple(host for host in cluster.facts.hosts if host.name in left)
    drained = {name: one for name, one in cluster.drained.items() if name in left}
    facts = replace(cluster.facts, hosts=hosts)
    return replace(cluster, facts=facts, drained=drained, pattern=pattern)


def _tell_all(
    cluster: Cluster,
    stages: str,
    options: tuple[str, ...],
    view: View,
    passwords: tuple[str, ...],
    stack: Setup = Setup(),  # noqa: B008 - it is frozen
) -> StagesResult:
    """Run these stages on all hosts: `system` renews their firewalls.

    Raises:
        FtclusterError: a host failed or does not answer.
    """
    return setup(cluster.inventories, (*options, "--tags", stages), view, passwords, stack)


def _stack_of(found: StagesResult) -> Setup:
    """The playbook for the stack that the head has, which hosts that come and go do not change,
    whatever the inventory says of the next setup.
    """
    return Setup(torch_stack_name=found.facts[found.inventory.head].stack)


def _pattern(cluster: Cluster, options: Sequence[str], hosts: Sequence[str]) -> tuple[str, ...]:
    """Options that name the hosts of a cluster, where the saved pattern names others.

    Raises:
        FtclusterError: the inventory itself says which hosts the cluster has, and names others.
    """
    reach = (*cluster.options, *options)
    if set(read_inventory(cluster.inventories, reach, cluster.pattern).cluster) == set(hosts):
        return ()
    own = read_inventory(cluster.inventories, reach).pattern
    if own:
        raise FtclusterError(
            f"the inventory says which hosts the cluster has: {HOSTS_VARIABLE}={own}",
            f"change it there, so that it names {', '.join(hosts)}",
        )
    return ("--extra-vars", f"{HOSTS_VARIABLE}={pattern_of(hosts)}")


def drain(options: argparse.Namespace) -> int:
    """Have new runs leave hosts out; returns the exit code."""
    cluster = recall()
    names = _of_cluster(options, cluster, "drained")
    one = Drained(options.why, f"{datetime.now(UTC):%Y-%m-%d}")
    _change_drained(options, cluster, dict.fromkeys(names, one))
    text = f"new runs leave out {', '.join(names)}; runs that use it go on (ftcluster ps)"
    print_result(options, {"state": "done", "drained": names, "why": one.why}, text)
    return 0


def give_back(options: argparse.Namespace) -> int:
    """Have new runs use drained hosts again; returns the exit code."""
    cluster, names = recall(), _names(options)
    if any(name not in cluster.drained for name in names):  # maybe another control node drained it
        cluster = _change_drained(options, cluster, {})
    if others := [name for name in names if name not in cluster.drained]:
        drained = ", ".join(cluster.drained) or "none"
        raise FtclusterError(f"not drained: {', '.join(others)}", f"drained: {drained}")
    _change_drained(options, cluster, dict.fromkeys(names))
    text = f"new runs use {', '.join(names)} again"
    print_result(options, {"state": "done", "returned": names}, text)
    return 0


def _change_drained(
    options: argparse.Namespace, cluster: Cluster, names: Mapping[str, Drained | None]
) -> Cluster:
    """Tell the head, for all control nodes, that new runs leave hosts out, or use them again;
    returns the cluster as it then is.
    """
    with ask_passwords(vars(options)) as passwords:
        reach = (*cluster.options, *passed_on(vars(options)), *passwords)
        return change_record(cluster, with_drained(names), reach, make_view(options.verbose))


def _names(options: argparse.Namespace) -> list[str]:
    """The hosts that the user names, each once.

    Raises:
        UsageError: there is none.
    """
    names = [name for word in options.words for name in word.split(",") if name]
    if not names:
        raise UsageError("name the hosts", options.parser.usage_line())
    return list(dict.fromkeys(names))


def _of_cluster(options: argparse.Namespace, cluster: Cluster, done: str) -> list[str]:
    """The hosts that the user names, which are the cluster's and not its head.

    Raises:
        FtclusterError: one is not; names all.
    """
    names, known = _names(options), [host.name for host in cluster.facts.hosts]
    if unknown := [name for name in names if name not in known]:
        raise FtclusterError(
            f"the cluster has no host {', '.join(unknown)}", f"it has {', '.join(known)}"
        )
    if known[0] in names:
        raise FtclusterError(
            f"{known[0]} is the head, which starts all runs, so it is not {done}",
            "make another host the head: group head of the inventory, then ftcluster setup",
        )
    return names
