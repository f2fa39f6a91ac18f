"""Give a run's head access to the run's other hosts, if another host is the cluster's head."""

from collections.abc import Sequence

from ftcluster.ansible.inventory import pattern_of
from ftcluster.ansible.playbooks import Mesh
from ftcluster.launch.run import ClusterRun
from ftcluster.progress.view import View
from ftcluster.provision.stages import run_stages


def ensure_head_access(run: ClusterRun, connection_options: Sequence[str], view: View) -> None:
    """Let the head of a run log in to the run's other hosts.

    `setup` has already given this access to the cluster's head.

    Raises:
        FtclusterError: a host of the run does not respond, or refuses the change.
    """
    names = [host.name for host in run.plan.prepared]
    if len(names) > 1 and run.cluster.is_headed_elsewhere:
        # with --limit, the head of an active run keeps its access to all other hosts
        options = (*connection_options, "--limit", pattern_of(names))
        run_stages(Mesh(names[0]), run.cluster.inventories, options, view)
