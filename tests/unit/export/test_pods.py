"""The share of a node that a pod gets."""

from dataclasses import replace

import pytest

from ftcluster.export.pods import GIB, STACK, TCMALLOC, VOLUME, as_pod, resources
from ftcluster.planning.plan import plan
from ftcluster_common.protocol.cpu_list import parse_cpus
from tests.unit.clusters import STACKS, cluster, host, nodes

NODE = host("node1", cores=32, numa_nodes=2, memory_bytes=256 * GIB)


def test_a_core_and_a_tenth_of_the_memory_are_the_nodes() -> None:
    assert NODE.threads == 64
    assert vars(resources(cluster(NODE))) == {"cpus": 62, "memory_gib": 230}
    pod = as_pod(NODE)
    assert [node.cpus for node in pod.numa] == ["1-15", "16-31"]
    assert (pod.cores, pod.threads, pod.memory_bytes) == (31, 62, 230 * GIB)
    assert (pod.prefix, pod.tcmalloc, pod.rdma) == (VOLUME, TCMALLOC, ())
    assert not STACK.startswith(VOLUME)  # otherwise the volume would hide the stack
    # not an address of a pod
    assert ":" not in as_pod(replace(NODE, name="fd00::1")).network_address
    # the smallest node decides
    less = replace(NODE, name="node2", memory_bytes=255 * GIB)
    assert resources(cluster(NODE, less)).memory_gib == 229


@pytest.mark.parametrize(
    ("node", "cpus"),
    [
        (host("small", cores=3), 6),  # no core is left for the node
        (host("single", cores=32, threads=32), 31),  # cores without a second thread
        (host("quota", cores=8, numa=nodes(32, 1), cpu_quota=8.0, threads=64), 8),
        (host("more", cores=32, numa=nodes(32, 1), cpu_quota=48.0, threads=64), 48),
    ],
)
def test_requests_of_other_nodes(node: object, cpus: int) -> None:
    assert resources(cluster(node)).cpus == cpus  # type: ignore[arg-type]


def test_the_plan_has_no_more_than_what_the_pod_requests() -> None:
    """Also with shared cores of emulated nodes, and cores numbered in turns."""
    turns = tuple(
        replace(node, cpus=text) for node, text in zip(NODE.numa, ("0-30:2", "1-31:2"), strict=True)
    )
    same = tuple(replace(node, cpus="0-31", cores=32) for node in NODE.numa)
    for numa in (NODE.numa, turns, same):
        facts = cluster(as_pod(replace(NODE, numa=numa)))
        [decided] = plan(facts, None, STACKS).hosts
        used = [cpu for rank in decided.placement for cpu in parse_cpus(rank.cpus)]
        assert sorted(used) == list(range(1, 32))
