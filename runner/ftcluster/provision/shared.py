"""Changes the cluster's record on the head, which all control nodes share."""

from collections.abc import Mapping, Sequence
from typing import Any

from ftcluster.ansible.playbooks import Record
from ftcluster.cluster.saved import Cluster, change
from ftcluster.progress.view import View
from ftcluster.provision.stages import run_stages


def change_record(
    cluster: Cluster, changes: Mapping[str, Any], connection_options: Sequence[str], view: View
) -> Cluster:
    """Change the record on the head and the local copy; return the changed cluster.

    Args:
        changes: changes in the form of the module `ftcluster.cluster.cluster_record`.
        connection_options: arguments of ansible-playbook for reaching the hosts.

    Raises:
        FtclusterError: the head does not respond, or refuses the change.
    """
    head = cluster.facts.head
    # use the prefix in the head's facts, because -e may have set it at setup
    playbook = Record(dict(changes), head.prefix, None if head.can_become_root else "false")
    options = (*connection_options, "--limit", head.name)
    result = run_stages(playbook, cluster.inventories, options, view)
    record = result.records.get(head.name)
    change(cluster.inventories, lambda saved: saved and saved.with_record(record))
    return cluster.with_record(record)
