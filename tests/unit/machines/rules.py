"""Rules for the plan of every machine."""

from collections.abc import Iterator
from itertools import combinations

from ftcluster.cluster.facts import HostFacts
from ftcluster.planning.placement import COMMUNICATION_FROM, lay_out
from ftcluster.planning.plan import HostPlan
from ftcluster.planning.topology import SMALL_NODE, Topology
from ftcluster_common.protocol.cpu_list import parse_cpus
from tests.unit.machines.machine import Machine


def broken_rules(machine: Machine, facts: HostFacts, host: HostPlan) -> list[str]:
    """Return the rules that a plan of one host without a recipe breaks."""
    return [*_of_facts(machine, facts), *_of_cores(machine, facts, host),
            *_of_sockets(machine, facts, host), *_of_memory(machine, facts, host)]  # fmt: skip


def spanning_ranks(machine: Machine, topology: Topology, ranks: int) -> bool:
    """Return True if a rank has cores of two sockets without need."""
    on = [domain.sockets for domain in topology.with_cores_for(ranks)]
    sockets = set(on)
    if topology.limited or any(len(own) > 1 for own in on) or ranks % len(sockets):
        return False
    each = [
        sum(len(one.cpus) for one in topology.with_cores_for(ranks) if one.sockets == own)
        for own in sockets
    ]
    if min(each) < ranks // len(sockets):
        return False
    socket_of = machine.socket_of
    placed = lay_out(topology, ranks, communicates=True).ranks
    return any(len({socket_of[cpu] for cpu in parse_cpus(rank.cpus)}) > 1 for rank in placed)


def _of_facts(machine: Machine, facts: HostFacts) -> Iterator[str]:
    cores = {machine.siblings[cpu] for cpu in machine.usable}
    if facts.cpu_quota is None and facts.cores != len(cores):
        yield f"{facts.cores} cores, not {len(cores)}"
    named = {cpu for node in facts.numa for cpu in parse_cpus(node.cpus)}
    if {machine.siblings[cpu] for cpu in named} != cores or len(named) != len(cores):
        yield "the nodes' cores are not those that may be used"
    threads = [cpu for node in facts.numa for text in node.socket_cpus.values()
               for cpu in parse_cpus(text)]  # fmt: skip
    if set(threads) != machine.usable:
        yield "the sockets' threads are not those that may be used"
    sizes = sum(node.memory_bytes for node in facts.numa)
    if machine.usable_nodes and sizes != facts.memory_bytes:
        yield f"nodes of {sizes} bytes, a host of {facts.memory_bytes}"


def _of_cores(machine: Machine, facts: HostFacts, host: HostPlan) -> Iterator[str]:
    cpus = [set(parse_cpus(rank.cpus)) for rank in host.placement]
    all_of = set().union(*cpus)
    if not all_of <= machine.usable:
        yield f"forbidden CPUs {sorted(all_of - machine.usable)}"
    if Topology.of(facts).limited:
        if sum(rank.threads for rank in host.placement) > max(facts.cores, len(cpus)):
            yield "more threads than the quota"
        if all_of != machine.usable and len({len(own) for own in cpus}) == 1:
            small = [node for node in facts.numa if 0 < node.cores < SMALL_NODE * max(
                other.cores for other in facts.numa)]  # fmt: skip
            if not small:
                yield "CPUs that no job under a quota would use"
        return
    if any(one & other for one, other in combinations(cpus, 2)):
        yield "a CPU of two ranks"
    cores = [machine.siblings[cpu] for own in cpus for cpu in own]
    if len(set(cores)) != len(cores):
        yield "two hardware threads of a core"
    for rank, own in zip(host.placement, cpus, strict=True):
        # one core of each rank may communicate
        if not len(own) - (len(own) >= COMMUNICATION_FROM) <= rank.threads <= len(own):
            yield f"{rank.threads} threads on {len(own)} CPUs"
    idle = facts.cores - len(cores)
    small = sum(len(set(parse_cpus(node.cpus)) - all_of) for node in facts.numa if node.cores)
    if idle != small:
        yield f"{idle} idle cores, {small} of them on nodes"
    # only small nodes, a remainder and a core for the system are idle
    most = max(node.cores for node in facts.numa)
    left = [node for node in facts.numa
            if node.cores and not set(parse_cpus(node.cpus)) & all_of]  # fmt: skip
    if any(node.cores >= SMALL_NODE * most for node in left):
        yield f"nodes {[node.node for node in left]} are idle"
    rest = idle - sum(node.cores for node in left)
    if rest > max(1, len(cpus) - 1) and not _divided(facts, all_of):
        yield f"{rest} cores are idle"


def _divided(facts: HostFacts, used: set[int]) -> bool:
    """Return True if the idle cores are the small part of a node that sockets divide."""
    return any(
        len(node.socket_cpus) > 1 and not set(parse_cpus(text)) & used
        for node in facts.numa
        for text in node.socket_cpus.values()
    )


def _of_sockets(machine: Machine, facts: HostFacts, host: HostPlan) -> Iterator[str]:
    if Topology.of(facts).limited:
        return
    socket_of = machine.socket_of
    ranks = [{socket_of[cpu] for cpu in parse_cpus(rank.cpus)} for rank in host.placement]
    sockets = set().union(*ranks)
    within = [len(node.socket_cpus) for node in facts.numa if node.cores]
    if max(within) > 1 and len(set(within)) == 1:
        return  # all nodes span sockets that are too small for ranks
    if len(ranks) >= len(sockets) and any(len(own) > 1 for own in ranks):
        yield f"{len(ranks)} ranks on {len(sockets)} sockets, and one spans two"


def _of_memory(machine: Machine, facts: HostFacts, host: HostPlan) -> Iterator[str]:
    for number, rank in enumerate(host.placement):
        if machine.usable_nodes and not set(rank.memory) <= machine.usable_nodes:
            yield f"rank {number} prefers {rank.memory}, which have no memory to use"
    node_of = {cpu: node for node in machine.nodes for cpu in parse_cpus(node.cpus)}
    hbm = {node.node for node in facts.numa if node.hbm}
    for number, rank in enumerate(host.placement):
        own = {node_of[cpu].number for cpu in parse_cpus(rank.cpus) if cpu in node_of}
        missing = own & machine.usable_nodes - set(rank.memory)
        if rank.memory and missing and not set(rank.memory) <= hbm:
            yield f"rank {number} has cores of {sorted(own)} and prefers {rank.memory}"
