"""The resources of a training run's pods, and the facts of hosts as pods. Pure functions only."""

from dataclasses import dataclass, replace

from ftcluster.cluster.facts import ClusterFacts, HostFacts
from ftcluster.planning.memory import USABLE
from ftcluster.planning.plan import HostPlan, LaunchPlan
from ftcluster.planning.topology import Topology
from ftcluster.text.host_names import short_names
from ftcluster_common.protocol.cpu_list import format_cpus, parse_cpus
from ftcluster_common.protocol.network import AUTO

STACK = "/opt/ftcluster/stack"  # path in the node image
VOLUME = "/mnt/ftcluster"  # mount point of the claim: models, caches, runs
TCMALLOC = "/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4"  # path in Debian
NODE_CORES = 4  # a node with fewer cores reserves no core for kubelet
GIB = 2**30


@dataclass(frozen=True)
class Resources:
    """The resources of a pod, used as both requests and limits.

    Attributes:
        cpus: number of logical CPUs, as Kubernetes counts them.
    """

    cpus: int
    memory_gib: int


def resources(facts: ClusterFacts) -> Resources:
    """Return the resources of a pod: all of a node except one core and a tenth of the memory.

    Kubelet, the system and daemon sets need the rest. A pod that requested a whole node would never
    be scheduled.
    """
    hosts = [_without_first_core(host) for host in facts.hosts]
    cpus = min(int(min(host.cpu_quota or host.threads, host.threads)) for host in hosts)
    memory = min(host.memory_bytes for host in hosts)
    return Resources(max(1, cpus), max(1, int(memory * USABLE / GIB)))


def as_pod(host: HostFacts) -> HostFacts:
    """Return the facts that a pod of the node image would report on a host.

    A pod has no address before it starts, so the host's name is used as the address; plan() only
    checks that addresses differ. RDMA is off, because RDMA in a pod needs a device plugin.
    """
    return replace(
        _without_first_core(host),
        memory_bytes=resources(ClusterFacts((host,))).memory_gib * GIB,
        prefix=VOLUME,
        connection="pod",
        rank_user="",
        tcmalloc=TCMALLOC,
        openmp="",  # the native stacks do not contain Intel's OpenMP
        network_address=host.name.replace(":", "-"),
        network_interface="",
        network_provider=AUTO,
        rdma=(),
        rdma_libraries=(),
    )


def _without_first_core(host: HostFacts) -> HostFacts:
    """Return the host without its first core, which kubelet's CPU manager reserves."""
    if host.cores < NODE_CORES or Topology.of(host).limited:
        return host
    cpus = [parse_cpus(node.cpus) for node in host.numa]
    first = min(cpu for of_node in cpus for cpu in of_node)
    numa = tuple(
        replace(
            node,
            cores=node.cores - 1,
            cpus=format_cpus(cpu for cpu in of_node if cpu != first),
        )
        if first in of_node
        else node
        for node, of_node in zip(host.numa, cpus, strict=True)
    )
    threads = host.threads - host.threads // host.cores
    return replace(host, cores=host.cores - 1, threads=threads, numa=numa)


def uneven(plan: LaunchPlan) -> str:
    """Return the names of hosts whose ranks use other cores than the first host's ranks, or "".

    These hosts cannot be pods of the training run, because all pods have the same template.
    """

    def cores(host: HostPlan) -> list[tuple[object, ...]]:
        return [(rank.cpus, rank.threads, rank.memory) for rank in host.placement]

    first = cores(plan.hosts[0])
    return short_names([host.name for host in plan.hosts if cores(host) != first])
