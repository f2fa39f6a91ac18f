"""Machines that hypothesis generates, and rules for their plans."""

import os
from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from ftcluster.planning.placement import lay_out
from ftcluster.planning.plan import plan
from ftcluster.planning.topology import Topology
from ftcluster_common.protocol.cpu_list import format_cpus, parse_cpus
from tests.unit.clusters import STACKS, cluster
from tests.unit.machines.machine import Machine, Node, machine
from tests.unit.machines.rules import broken_rules, spanning_ranks

GIB = 2**20  # in kB


@st.composite
def machines(draw: Any) -> Machine:
    """Generate a machine of any shape, and the part that a process may use."""
    sockets = draw(st.sampled_from([1, 2, 2, 4, 8, 16]))
    each = draw(st.sampled_from([1, 1, 2, 3, 4]))  # nodes per socket
    size = draw(st.integers(1, max(2, 48 // (sockets * each))))  # cores per node
    second = draw(st.booleans())
    # cores and nodes are numbered socket by socket, or in turns
    by_turns, nodes_by_turns = draw(st.booleans()), draw(st.booleans())
    count = sockets * each
    total = count * size
    node_of, package_of, siblings = {}, {}, []
    for core in range(total):
        place = core % count if by_turns else core // size
        socket, part = divmod(place, each)
        threads = (core, core + total) if second else (core,)
        siblings.append(threads)
        for cpu in threads:
            package_of[cpu] = socket
            node_of[cpu] = part * sockets + socket if nodes_by_turns else place
    socket_of_node = {node_of[cpu]: package_of[cpu] for cpu in node_of}
    if draw(st.integers(0, 9)) == 0:  # NUMA is off, or emulated by the firmware
        node_of = dict.fromkeys(node_of, 0)
    numbers = sorted(set(node_of.values()))
    gap = draw(st.sampled_from([1, 1, 8]))
    with_memory = [draw(st.integers(0, 5)) > 0 for _ in numbers]
    extra = draw(st.sampled_from([0, 0, 0, 1, len(numbers)]))
    every = [*numbers, *range(len(numbers), len(numbers) + extra)]
    near = {len(numbers) + at: numbers[at] for at in range(extra)}

    def far(one: int, other: int) -> int:
        if one == other:
            return 10
        both = [socket_of_node[near.get(node, node)] for node in (one, other)]
        beside = 2 if one in near or other in near else 0
        return (12 if both[0] == both[1] else 21) + beside

    nodes = [
        Node(
            number * gap,
            format_cpus(cpu for cpu, node in node_of.items() if node == number),
            GIB * draw(st.integers(1, 64)) if number in near or with_memory[number] else 0,
            " ".join(str(far(number, other)) for other in every),
        )
        for number in every
    ]
    made = machine("made", "", "Intel(R) Xeon(R) CPU", package_of, siblings, nodes)
    limits: dict[str, Any] = {}
    if draw(st.integers(0, 3)) == 0:
        usable = draw(st.sets(st.sampled_from(sorted(package_of)), min_size=1))
        limits["allowed"] = format_cpus(usable)
    memory = sorted(made.usable_nodes)
    if memory and draw(st.integers(0, 3)) == 0:
        limits["mems"] = format_cpus(draw(st.sets(st.sampled_from(memory), min_size=1)))
    if draw(st.integers(0, 3)) == 0:
        limits["quota"] = draw(st.integers(10, 100 * len(package_of) + 100))
    return replace(made, **limits)


@settings(max_examples=int(os.environ.get("FTCLUSTER_TEST_EXAMPLES", "0")) or 60)
@given(machines(), st.integers(1, 40))
def test_no_machine_breaks_the_rules(made: Machine, ranks: int) -> None:
    facts = made.facts()
    assert broken_rules(made, facts, plan(cluster(facts), None, STACKS).hosts[0]) == []
    topology = Topology.of(facts)
    asked = lay_out(topology, min(ranks, facts.cores), communicates=True)
    if topology.limited:
        return
    for count in {min(ranks, facts.cores), *topology.even_counts}:
        assert not spanning_ranks(made, topology, count)
    cores = [made.siblings[cpu] for rank in asked.ranks for cpu in parse_cpus(rank.cpus)]
    assert len(set(cores)) == len(cores)
    assert all(rank.cpus for rank in asked.ranks)
