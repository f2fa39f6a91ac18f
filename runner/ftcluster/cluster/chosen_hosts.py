"""Restrict a cluster to the hosts that the user names with --hosts. Pure functions only."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from ftcluster.cluster.saved import Cluster
from ftcluster.errors import UsageError
from ftcluster.text.plural import counted


def with_hosts(cluster: Cluster, names: Sequence[str]) -> Cluster:
    """Return the cluster restricted to the named hosts, with the head of their runs first.

    The head of the runs is the cluster's head if it is named, or else the first named host.

    Args:
        names: names of hosts in the inventory; if empty, the cluster is returned unchanged.

    Raises:
        UsageError: a host is unknown, drained or named twice; lists all such hosts.
    """
    if not names:
        return cluster
    hosts = {host.name: host for host in cluster.facts.hosts}
    unknown = [name for name in dict.fromkeys(names) if name not in hosts]
    problems = [f"the cluster has no host {name!r}" for name in unknown]
    problems += [
        f"{name} is drained: {cluster.drained[name].why}, since {cluster.drained[name].since}"
        for name in dict.fromkeys(names)
        if name in cluster.drained
    ]
    problems += [f"{name} is named twice" for name, count in Counter(names).items() if count > 1]
    if problems:
        few = f"--hosts: {problems[0]}"
        many = "\n  ".join([f"--hosts: {counted(len(problems), 'problem')}", *problems])
        usable = ", ".join(host.name for host in cluster.usable.hosts)
        raise UsageError(few if len(problems) == 1 else many, f"hosts that runs can use: {usable}")
    # sorted() is stable, so the other hosts keep their order
    order = sorted(names, key=lambda name: name != cluster.head)
    facts = replace(cluster.facts, hosts=tuple(hosts[name] for name in order))
    return replace(cluster, facts=facts, drained={}, record_host=cluster.head)
