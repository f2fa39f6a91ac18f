"""Responses of hosts to `ftcluster check`, for tests of the code that evaluates them."""

from itertools import combinations
from pathlib import Path
from typing import Any

from ftcluster.ansible.inventory import Inventory
from ftcluster.provision.check import Found

SPEED = {
    "bf16_gflops": 4000.4, "fp32_gflops": 1600.0, "bf16_of_peak": 0.44, "fp32_of_peak": 0.9,
    "cpu": "Intel(R) Xeon(R) Platinum 8488C",
    "threads": 32, "load_average": 0.31, "cpu_share": 0.99, "stolen_share": 0.0, "throttled": 0,
    "mhz": 2600, "governor": "performance", "numa_nodes": 2, "relative": 1.0,
    "memory_gb_per_second": 400.0, "disk_mb_per_second": 900.0,
}  # fmt: skip
FACTS = {
    "os": "Debian GNU/Linux 12 (bookworm)", "kernel": "6.1.0-18-amd64", "prefix": "/opt/ftcluster",
    "cpu_model": "Intel(R) Xeon(R) Platinum 8488C", "cpu_generation": "Sapphire Rapids",
    "sockets": 2, "cores": 32, "numa_nodes": 2, "memory_bytes": 256 * 10**9,
    "free_bytes": 80 * 10**9, "network_interface": "eth0", "current": "native-1b2c3d4e5f60",
    "tcmalloc": "/usr/lib/libtcmalloc_minimal.so.4",
    "nics": [{"name": "eth0", "addresses": [], "speed_mbits": 25000, "mtu": 1500}],
}  # fmt: skip


def name(number: int) -> str:
    return f"node{number}"


def facts(number: int, **changes: Any) -> dict[str, Any]:
    return {**FACTS, "network_address": f"10.0.0.{number}", **changes}


def row(number: int, **changes: Any) -> dict[str, Any]:
    return {
        "name": name(number), "address": f"10.0.0.{number}", "hostname": name(number),
        "python": "3.11.7", "kernel": "brg_matmul:avx10_1_512_amx", "interface": "eth0",
        "versions": {"torch": "2.13.0+cpu", "transformers": "5.1", "ftcluster-train": "0.1.0"},
        "interface_mbits": 25000, "speed": SPEED, **changes,
    }  # fmt: skip


def pair(one: int, other: int, **changes: float) -> dict[str, Any]:
    values = {"latency_us": 40.0 + one, "mb_per_second": 1000.0 + other, **changes}
    return {"hosts": [name(one), name(other)], **values}


def report(count: int, **changes: Any) -> dict[str, Any]:
    return {
        "hosts": [row(number) for number in range(count)],
        "links": [pair(*ends) for ends in combinations(range(count), 2)],
        "problems": [], "warnings": [], "packages": 60, "large": {},
        "all_reduce_ms": 3.0 if count > 1 else None, **changes,
    }  # fmt: skip


def found(count: int, **changes: Any) -> Found:
    """Return a cluster with this many hosts without faults, except for the changes."""
    everyone = [name(number) for number in range(count)]
    values: dict[str, Any] = {
        "facts": {name(number): facts(number) for number in range(count)},
        "problems": {host: [] for host in everyone},
        "notices": {host: [] for host in everyone},
        "report": report(count),
        "seconds": 9.04,
        **changes,
    }
    return Found(Inventory((Path("/inventory.ini"),), tuple(everyone), tuple(everyone)), **values)
