"""Chooses libfabric's provider for MPI's traffic between hosts. Standard library only.

Runs and `ftcluster verify` use the same functions. The providers belong to the libfabric that comes
with Intel MPI (impi_rt 2021.18). They load the libraries in LIBRARIES from the host.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

AUTO = "auto"
TCP, VERBS, PSM3, PSM2, EFA = "tcp", "verbs;ofi_rxm", "psm3", "psm2", "efa"
PROVIDER_VARIABLE = "FI_PROVIDER"  # read by libfabric
LIBRARIES = {
    VERBS: ("libibverbs.so.1", "librdmacm.so.1"),
    PSM3: ("libibverbs.so.1", "libnuma.so.1", "libuuid.so.1"),
    PSM2: ("libpsm2.so.2",),
    EFA: ("libibverbs.so.1", "libefa.so.1"),
}
PROVIDERS = {  # providers by the device's driver
    "efa": EFA,
    "hfi1": PSM2,  # Omni-Path
    "ice": PSM3,  # Intel's Ethernet
    "bnxt_en": VERBS,
    "mlx4_core": VERBS,
    "mlx5_core": VERBS,
}


@dataclass(frozen=True)
class RdmaDevice:
    """One RDMA device, as documented by the module `ftcluster.cluster.host_facts`."""

    name: str
    driver: str
    iwarp: bool
    active: bool
    interfaces: tuple[str, ...]
    opens: bool

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "RdmaDevice":
        """Read a device from the result of `host_facts`; unknown keys are ignored."""
        values = {key.name: data[key.name] for key in fields(cls) if key.name in data}
        return cls(**{**values, "interfaces": tuple(values["interfaces"])})


@dataclass(frozen=True)
class HostNetwork:
    """The network of a host, as far as it matters to MPI.

    Attributes:
        interface: the host's network interface in the cluster, or "".
        asked: provider that ftcluster_network_provider in the inventory requests.
        libraries: members of LIBRARIES that are installed.
        locks_memory: True if the ranks' account may lock all memory, as RDMA requires.
    """

    interface: str
    asked: str = AUTO
    devices: tuple[RdmaDevice, ...] = ()
    libraries: tuple[str, ...] = ()
    locks_memory: bool = False

    @classmethod
    def from_dict(cls, facts: Mapping[str, Any]) -> "HostNetwork":
        """Return the network from a host's facts; older facts contain no RDMA devices."""
        return cls(
            interface=facts["network_interface"],
            asked=facts.get("network_provider", AUTO),
            devices=tuple(RdmaDevice.from_dict(device) for device in facts.get("rdma", ())),
            libraries=tuple(facts.get("rdma_libraries", ())),
            # setup raises the memory limit of the account that it creates
            locks_memory=bool(facts["rank_user"]) or facts.get("locks_memory", False),
        )


def choose_provider(hosts: Sequence[HostNetwork]) -> str:
    """Return the inventory's provider, or else a provider that all hosts can use, or else TCP."""
    asked = hosts[0].asked
    if asked != AUTO:
        return VERBS if asked == "verbs" else asked
    kinds = set()
    for host in hosts:
        device, problem = best_device(host)
        kinds.add(provider_of(device) if device and not problem else TCP)
    return kinds.pop() if len(kinds) == 1 else TCP


def best_device(host: HostNetwork) -> tuple[RdmaDevice | None, str]:
    """Return the RDMA device on the cluster's network, and why it cannot be used, or ""."""
    # EFA has no network interface
    near = [
        device
        for device in host.devices
        if device.driver == EFA or host.interface in device.interfaces
    ]
    if not near:
        where = f" on {host.interface}" if host.devices else ""
        return None, f"no RDMA device{where}"
    return min(
        ((address, _problem(host, address)) for address in near), key=lambda pair: bool(pair[1])
    )


def provider_of(device: RdmaDevice) -> str:
    """Return the provider for a device, or ""."""
    return "" if device.iwarp else PROVIDERS.get(device.driver, "")


def network_variables(provider: str, host: HostNetwork) -> dict[str, str]:
    """Return variables for a host's ranks, which make a provider use the cluster's network."""
    device, _ = best_device(host)
    if provider == TCP and host.interface:
        return {"FI_TCP_IFACE": host.interface}  # fi_tcp(7)
    if provider == VERBS and host.interface:
        return {"FI_VERBS_IFACE": host.interface}  # fi_verbs(7)
    if provider == PSM3 and device:
        return {"PSM3_NIC": device.name}  # fi_psm3(7)
    return {}


def _problem(host: HostNetwork, device: RdmaDevice) -> str:
    """Return the reason why a device cannot be used, or ""."""
    provider = provider_of(device)
    if not provider:
        kind = "iWARP" if device.iwarp else f"driver {device.driver or 'not reported'}"
        return f"no provider for {device.name} ({kind})"
    if not device.active:
        return f"no port of {device.name} is active"
    missing = [name for name in LIBRARIES[provider] if name not in host.libraries]
    if missing:
        return f"{provider} needs {' and '.join(missing)}"
    if not device.opens:
        return f"some accounts may not open {device.name}"
    if not host.locks_memory:
        return "the limit of locked memory (ulimit -l) is not unlimited"
    return ""
