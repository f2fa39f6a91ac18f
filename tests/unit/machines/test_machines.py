"""The facts and plans of real machines: machines.jsonl has the machines, golden/ the results.

`python -m tests.unit.machines.dumps` writes a line of machines.jsonl from a public dump. Each
golden file has one kind of machine; after a change, FTCLUSTER_RENEW_GOLDEN=1 renews the files. Then
read the difference as an operator of such machines would.
"""

import os
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from ftcluster.cluster.facts import HostFacts
from ftcluster.planning.placement import lay_out
from ftcluster.planning.plan import LaunchPlan, plan
from ftcluster.planning.topology import Topology
from ftcluster_common.protocol.cpu_list import format_cpus, parse_cpus
from tests.unit.clusters import STACKS, cluster
from tests.unit.machines.limits import limited_machines
from tests.unit.machines.machine import Machine
from tests.unit.machines.rules import broken_rules, spanning_ranks

HERE = Path(__file__).parent
RENEW = os.environ.get("FTCLUSTER_RENEW_GOLDEN") == "1"
LIBRARY = {
    machine.name: machine
    for machine in map(Machine.read, (HERE / "machines.jsonl").read_text().splitlines())
}
REAL = 60  # minimum number of real machines
SAID = ("ranks", "threads per rank", "memory", "pace")
HYPERVISORS = ("QEMU", "Virtual", "Skylake, IBRS", "6328")


def kind(machine: Machine) -> str:
    """Return the kind of a machine, named after its most unusual property."""
    with_cpus = [node for node in machine.nodes if node.cpus]
    if machine.share:
        return "slurm-share"
    if machine.quota:
        return "quota"
    if machine.allowed or machine.mems:
        return "cpuset"
    if any(name in machine.cpu for name in HYPERVISORS):
        return "virtual"
    memory_only = [node for node in machine.nodes if not node.cpus]
    if memory_only and ("Max" in machine.cpu or "06/57" in machine.cpu):
        return "hbm"
    if memory_only:
        return "memory-without-cores"
    if any(not node.kilobytes for node in with_cpus) and machine.usable_nodes:
        return "cores-without-memory"
    if len(machine.sockets) >= 4:
        return "many-sockets"
    if len(with_cpus) > len(machine.sockets):
        return "several-nodes-a-socket"
    if len(with_cpus) < len(machine.sockets) or len(machine.sockets) == 1:
        return "one-node"
    return "two-sockets"


KINDS: dict[str, list[Machine]] = defaultdict(list)
for one in [*LIBRARY.values(), *limited_machines(LIBRARY)]:
    KINDS[kind(one)].append(one)


@cache
def decided(machine: Machine) -> tuple[HostFacts, LaunchPlan]:
    """Return the facts gathered from a machine, and the plan made of them."""
    facts = machine.facts()
    return facts, plan(cluster(facts), None, STACKS)


def described(machine: Machine) -> Iterator[str]:
    """Return a description of the machine and its plan."""
    facts, made = decided(machine)
    yield f"{machine.name} ({machine.source})"
    yield f"  {machine.cpu or 'CPU'}; {facts.sockets} sockets, {facts.cores} cores, " + (
        f"{facts.threads} threads, {facts.memory_bytes / 2**30:.0f} GiB"
    )
    if Topology.of(facts).limited:
        yield f"  quota of {facts.cpu_quota:g} CPUs"
    for node in facts.numa:
        cpus = format_cpus(parse_cpus(node.cpus))
        near = "" if node.near is None else f", nearest to node {node.near}"
        hbm = ", HBM" * node.hbm
        sockets = f" of socket {','.join(node.socket_cpus)}" if node.cores else ""
        yield (
            f"  node {node.node}: {cpus or 'no cores'}{sockets}, "
            f"{node.memory_bytes / 2**30:.0f} GiB{near}{hbm}"
        )
    for number, rank in enumerate(made.hosts[0].placement):
        memory = ",".join(map(str, rank.memory)) or "any"
        yield f"  rank {number}: {rank.cpus}, {rank.threads} threads, memory {memory}"
    topology = Topology.of(facts)
    for count in topology.even_counts[1:]:
        ranks = lay_out(topology, count, communicates=True).ranks
        places = (
            f"{rank.cpus} memory {','.join(map(str, rank.memory)) or 'any'}" for rank in ranks
        )
        yield f"  with {count} ranks: {' | '.join(places)}"
    for decision in made.decisions:
        if decision.what in SAID:
            yield f"  {decision.what}: {decision.why}"


@pytest.mark.parametrize("name", KINDS)
def test_the_plans_are_the_golden_ones(name: str) -> None:
    path = HERE / "golden" / f"{name}.txt"
    found = "\n\n".join("\n".join(described(machine)) for machine in KINDS[name]) + "\n"
    if RENEW:
        path.write_text(found)
    assert found == path.read_text()
    assert len(list((HERE / "golden").iterdir())) == len(KINDS)


@pytest.mark.parametrize("name", KINDS)
def test_what_holds_for_all_machines(name: str) -> None:
    for machine in KINDS[name]:
        facts, made = decided(machine)
        assert broken_rules(machine, facts, made.hosts[0]) == [], machine.name
        topology = Topology.of(facts)
        for count in {*topology.even_counts, facts.sockets, 2 * facts.sockets} - {0}:
            if count <= facts.cores:
                assert not spanning_ranks(machine, topology, count), (machine.name, count)


def test_most_machines_are_real() -> None:
    assert sum("fake" not in machine.source for machine in LIBRARY.values()) >= REAL
    assert {len(machine.sockets) for machine in LIBRARY.values()} >= {1, 2, 4, 8, 16}
