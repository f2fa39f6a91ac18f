"""Changes what all control nodes of a cluster have to know, on its head."""

from collections.abc import Mapping, Sequence
from typing import Any

from ftcluster.ansible.playbooks import Record
from ftcluster.cluster.saved import Cluster, change
from ftcluster.progress.view import View
from ftcluster.provision.stages import run_stages


def change_record(
    cluster: Cluster, changes: Mapping[str, Any], connection_options: Sequence[str], view: View
) -> Cluster:
    """Change the record on the head, and this control node's copy of it; returns the cluster.

    Args:
        changes: as the module `ftcluster.cluster.cluster_record` takes them.
        connection_options: arguments of ansible-playbook that say how to reach the hosts.

    Raises:
        FtclusterError: the head does not answer, or refuses it.
    """
    head = cluster.facts.head
    # where the cluster is, which -e may have said at setup
    playbook = Record(dict(changes), head.prefix, None if head.can_become_root else "false")
    options = (*connection_options, "--limit", head.name)
    result = run_stages(playbook, cluster.inventories, options, view)
    record = result.records.get(head.name)
    change(cluster.inventories, lambda saved: saved and saved.with_record(record))
    return cluster.with_record(record)
