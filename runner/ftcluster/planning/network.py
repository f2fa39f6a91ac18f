"""Choose libfabric's provider for MPI between hosts. Pure functions only."""

from collections.abc import Mapping, Sequence

from ftcluster.cluster.facts import ClusterFacts, HostFacts
from ftcluster.errors import PlanError
from ftcluster.text.host_names import short_names
from ftcluster_common.protocol.network import AUTO, TCP, best_device, choose_provider, provider_of

ASKED = "ftcluster_network_provider"  # variable of the inventory


def choose_network(hosts: Sequence[HostFacts]) -> tuple[str, str]:
    """Return the value of FI_PROVIDER, and the reason for this choice.

    Raises:
        PlanError: the inventory sets several providers.
    """
    asked = _by_value({host.name: host.network_provider for host in hosts})
    if len(asked) > 1:
        raise PlanError(
            f"all hosts need the same {ASKED}; the inventory sets {_shown(asked)}",
            "set the same value for all hosts, and run ftcluster setup again",
        )
    provider = choose_provider([host.network for host in hosts])
    if AUTO not in asked:
        return provider, f"set in the inventory: {ASKED}"
    if not any(host.rdma for host in hosts):
        return provider, "no host has an RDMA device"
    best = {host.name: best_device(host.network) for host in hosts}
    problems = _by_value({name: problem for name, (_, problem) in best.items() if problem})
    if problems:
        return provider, f"not RDMA: {_shown(problems)}"
    devices = {name: device for name, (device, _) in best.items() if device}
    if provider == TCP:
        kinds = _by_value({name: provider_of(device) for name, device in devices.items()})
        return provider, f"not RDMA, because its providers differ: {_shown(kinds)}"
    names = _by_value({name: device.name for name, device in devices.items()})
    return provider, f"every host has an RDMA device on the run's network: {_shown(names)}"


def network_mbits(facts: ClusterFacts) -> float | None:
    """Return the speed of the network between hosts in Mbit/s.

    The speed is measured or, without a measurement, nominal. Return None if neither speed is known,
    or if there is only one host.
    """
    hosts = len(facts.hosts)
    if hosts == 1:
        return None
    if measured := facts.known_all_reduce:
        megabits = host_bytes(measured.bytes, hosts) * 8 / 1e6
        return megabits / (min(measured.ms.values()) / 1000)
    return nominal_mbits(facts.hosts)


def nominal_mbits(hosts: Sequence[HostFacts]) -> float | None:
    """Return the lowest nominal speed of the hosts' interfaces in Mbit/s; None if none is known."""
    interfaces = [
        nic for host in hosts for nic in host.nics if nic["name"] == host.network_interface
    ]
    return min((nic["speed_mbits"] for nic in interfaces if nic["speed_mbits"]), default=None)


def host_bytes(size: int, hosts: int) -> float:
    """Return the minimum number of bytes that a host sends in an all-reduce of `size` bytes.

    A host sends all parts of the tensor except one, twice.

    >>> host_bytes(100, 2)
    100.0
    """
    return 2 * (hosts - 1) / hosts * size


def _by_value(values: Mapping[str, str]) -> dict[str, list[str]]:
    """Map each value to the names that have it."""
    names: dict[str, list[str]] = {}
    for name, value in values.items():
        names.setdefault(value, []).append(name)
    return names


def _shown(names_of: Mapping[str, Sequence[str]]) -> str:
    """Format values and their hosts, such as "mlx5_0 on node1-node2, mlx5_1 on node3"."""
    return ", ".join(f"{value} on {short_names(names)}" for value, names in names_of.items())
