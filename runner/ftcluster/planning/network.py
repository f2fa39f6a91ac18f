"""How MPI's messages go from host to host: libfabric's provider. Pure functions only.

The providers are those of the libfabric that comes with Intel MPI (impi_rt 2021.18), and the
libraries are those that it takes from the host.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ftcluster.cluster.facts import HostFacts, RdmaDevice
from ftcluster.errors import PlanError
from ftcluster.text.host_names import short_names

ASKED, AUTO = "ftcluster_network_provider", "auto"  # the inventory's variable
TCP, VERBS, PSM3, PSM2, EFA = "tcp", "verbs;ofi_rxm", "psm3", "psm2", "efa"
LIBRARIES = {
    VERBS: ("libibverbs.so.1", "librdmacm.so.1"),
    PSM3: ("libibverbs.so.1", "libnuma.so.1", "libuuid.so.1"),
    PSM2: ("libpsm2.so.2",),
    EFA: ("libibverbs.so.1", "libefa.so.1"),
}
PROVIDERS = {  # by the device's driver
    "efa": EFA,
    "hfi1": PSM2,  # Omni-Path
    "ice": PSM3,  # Intel's Ethernet
    "bnxt_en": VERBS,
    "mlx4_core": VERBS,
    "mlx5_core": VERBS,
}


@dataclass(frozen=True)
class Network:
    """What MPI uses between hosts.

    Attributes:
        provider: the value of FI_PROVIDER.
        devices: names of RDMA devices by host name, of hosts that have one on the run's network.
    """

    provider: str
    why: str
    devices: dict[str, str]


def choose_network(hosts: Sequence[HostFacts]) -> Network:
    """RDMA where every host can use the same provider, else TCP.

    Raises:
        PlanError: the inventory asks for several providers.
    """
    asked = _by_value({host.name: host.network_provider for host in hosts})
    if len(asked) > 1:
        raise PlanError(
            f"all hosts need the same {ASKED}; the inventory gives {_shown(asked)}",
            "set it for all hosts and run ftcluster setup again",
        )
    found = {host.name: _best_device(host) for host in hosts}
    devices = {name: device.name for name, (device, _) in found.items() if device}
    [value] = asked
    if value != AUTO:
        provider = VERBS if value == "verbs" else value
        return Network(provider, f"set in the inventory, {ASKED}", devices)
    if not any(host.rdma for host in hosts):
        return Network(TCP, "no host has an RDMA device", {})
    problems = _by_value({name: problem for name, (_, problem) in found.items() if problem})
    if problems:
        return Network(TCP, f"not RDMA: {_shown(problems)}", {})
    kinds = _by_value({name: _provider(device) for name, (device, _) in found.items() if device})
    if len(kinds) > 1:
        return Network(TCP, f"not RDMA, whose providers differ: {_shown(kinds)}", {})
    [provider] = kinds
    why = f"every host has a device for it on the run's network: {_shown(_by_value(devices))}"
    return Network(provider, why, devices)


def network_variables(provider: str, interface: str, device: str) -> dict[str, str]:
    """Variables of one host's ranks that make a provider use the run's network."""
    if provider == TCP and interface:
        return {"FI_TCP_IFACE": interface}  # fi_tcp(7)
    if provider == VERBS and interface:
        return {"FI_VERBS_IFACE": interface}  # fi_verbs(7)
    if provider == PSM3 and device:
        return {"PSM3_NIC": device}  # fi_psm3(7)
    return {}


def _best_device(host: HostFacts) -> tuple[RdmaDevice | None, str]:
    """The host's device for the run's network, and why it cannot be used, or ""."""
    # EFA has no network interface
    near = [
        one for one in host.rdma if one.driver == EFA or host.network_interface in one.interfaces
    ]
    if not near:
        where = f" at {host.network_interface}" if host.rdma else ""
        return None, f"no RDMA device{where}"
    return min(((one, _problem(host, one)) for one in near), key=lambda pair: bool(pair[1]))


def _problem(host: HostFacts, device: RdmaDevice) -> str:
    """Why a device cannot be used, or ""."""
    provider = _provider(device)
    if not provider:
        kind = "iWARP" if device.iwarp else f"driver {device.driver or 'of software'}"
        return f"no provider for {device.name} ({kind})"
    if not device.active:
        return f"no port of {device.name} is active"
    missing = [name for name in LIBRARIES[provider] if name not in host.rdma_libraries]
    if missing:
        return f"{provider} needs {' and '.join(missing)}"
    if not device.opens:
        return f"not every account may open {device.name}"
    if not host.rank_user and not host.locks_memory:  # setup raises the limit of its account
        return "the limit of locked memory (ulimit -l) is not unlimited"
    return ""


def _provider(device: RdmaDevice) -> str:
    return "" if device.iwarp else PROVIDERS.get(device.driver, "")


def _by_value(values: Mapping[str, str]) -> dict[str, list[str]]:
    """The names that have each value."""
    names: dict[str, list[str]] = {}
    for name, value in values.items():
        names.setdefault(value, []).append(name)
    return names


def _shown(names_of: Mapping[str, Sequence[str]]) -> str:
    """Values with the hosts that have them: "mlx5_0 on node1-node2, mlx5_1 on node3"."""
    return ", ".join(f"{value} on {short_names(names)}" for value, names in names_of.items())
