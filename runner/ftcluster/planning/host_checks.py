"""Check the hosts' addresses, allocators and support of bf16. Pure functions only."""

from collections.abc import Sequence

from ftcluster.cluster.facts import ClusterFacts, HostFacts
from ftcluster.errors import PlanError
from ftcluster.text.host_names import short_names
from ftcluster_common.recipe import Recipe

BF16_FLAG, AMX_FLAG = "avx512_bf16", "amx_bf16"
# Without AMX, matmuls in bf16 are half as fast as in fp32 on these CPUs; see `fast_bf16` of
# train/ftcluster_kernels/products.py
MADE_FOR_AMX = ("Sapphire Rapids", "Emerald Rapids", "Granite Rapids", "Diamond Rapids")
LOOPBACKS = ("127.", "::1", "localhost")


def check_addresses(facts: ClusterFacts) -> None:
    """Check that the hosts' addresses allow several hosts to reach each other.

    Raises:
        PlanError: an address is a loopback or IPv6 address, or two hosts have the same address.
    """
    if len(facts.hosts) == 1:
        return
    lines = [
        f"{host.name} has the address {host.network_address or '(none)'}"
        for host in facts.hosts
        if not host.network_address
        or host.network_address.startswith(LOOPBACKS)
        or host.network_interface == "lo"
    ]
    if lines:
        raise PlanError(
            "other hosts cannot reach a loopback address\n  " + "\n  ".join(lines),
            "set ftcluster_address=ADDRESS for these hosts in the inventory, and run ftcluster "
            "setup again",
        )
    lines = [f"{host.name} at {host.network_address}" for host in facts.hosts
             if ":" in host.network_address]  # fmt: skip
    if lines:
        raise PlanError(
            "mpirun reaches hosts only over IPv4\n  " + "\n  ".join(lines),
            "set ftcluster_address to an IPv4 address of each host and run ftcluster setup again",
        )
    names: dict[str, list[str]] = {}
    for host in facts.hosts:
        names.setdefault(host.network_address, []).append(host.name)
    twice = [f"{', '.join(same)} at {address}" for address, same in names.items() if same[1:]]
    if twice:
        raise PlanError(
            "several hosts have the same address\n  " + "\n  ".join(twice),
            "remove the duplicates from the inventory and run ftcluster setup again; in a facts "
            "file that you write, each host needs a different network_address",
        )


def check_allocator(facts: ClusterFacts, recipe: Recipe | None) -> None:
    """Check that all hosts have the allocator that the recipe names.

    Raises:
        PlanError: some hosts do not have the allocator.
    """
    without = [host.name for host in facts.hosts if not host.tcmalloc]
    if recipe and recipe.allocator == "tcmalloc" and without:
        raise PlanError(
            f"allocator=tcmalloc, but it is not installed on {short_names(without)}",
            "install libtcmalloc-minimal4 there, or set allocator=auto",
        )


def choose_precision(recipe: Recipe | None, hosts: Sequence[HostFacts]) -> tuple[str, str]:
    """Choose bf16 or fp32. Return the choice and its reason."""
    if recipe and recipe.precision != "auto":
        return recipe.precision, f"set in recipe {recipe.name}"
    slow = [host for host in hosts if not _has_fast_bf16(host)]
    if not slow:
        return "bf16", "every host has AMX or fast AVX512-BF16"
    others = "" if len(slow) == len(hosts) else "; without them, bf16 would be used"
    need_amx = [host.name for host in slow if host.cpu_generation in MADE_FOR_AMX]
    rest = [host.name for host in slow if host.name not in need_amx]
    reasons = [
        f"{lack} on {short_names(names)}"
        for lack, names in (("no usable AMX", need_amx), ("no AMX or AVX512-BF16", rest))
        if names
    ]
    return "fp32", f"{' and '.join(reasons)}, so bf16 is slower there{others}"


def _has_fast_bf16(host: HostFacts) -> bool:
    """Return True if bf16 is faster than fp32 on a host.

    AMX needs the kernel's permission, AVX512 does not.
    """
    if AMX_FLAG in host.cpu_flags and host.amx == "usable":
        return True
    return BF16_FLAG in host.cpu_flags and host.cpu_generation not in MADE_FOR_AMX
