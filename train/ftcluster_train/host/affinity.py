"""Binds a process to the CPUs and NUMA nodes of its plan, as far as this host allows.

Standard library only: it delays every rank.
"""

import ctypes
import errno
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ftcluster_common.cpu_list import format_cpus, parse_cpus

# Linux, arch/x86/entry/syscalls/syscall_64.tbl and include/uapi/linux/mempolicy.h
SYS_SET_MEMPOLICY, SYS_GET_MEMPOLICY = 238, 239
MPOL_DEFAULT, MPOL_PREFERRED, MPOL_PREFERRED_MANY = 0, 1, 5
MPOL_MODE = 0xFF  # the bits above are flags
NODES = 1024  # the most that any kernel is built for (CONFIG_NODES_SHIFT 10)

Syscall = Callable[..., int]


@dataclass(frozen=True)
class Place:
    """The plan of one rank.

    Attributes:
        host: number of its host in the plan, the head being 0.
        memory: the NUMA nodes that it prefers; none: the kernel's default policy.
        env: variables of its host.
    """

    rank: int
    world_size: int
    local_rank: int
    local_size: int
    host: int
    cpus: frozenset[int]
    threads: int
    memory: tuple[int, ...]
    env: Mapping[str, str]


def find_place(placement: Mapping[str, Any], rank: int) -> Place:
    """The place of one rank, from 0.

    Args:
        placement: see ftcluster_common.launch.rank_placement. Ranks are numbered in the order
            of hosts.

    Raises:
        ValueError: there are fewer ranks.
    """
    kinds = [placement["kinds"][kind] for kind, count in placement["hosts"] for _ in range(count)]
    ranks = [
        (host, kind, local)
        for host, kind in enumerate(kinds)
        for local in range(len(kind["ranks"]))
    ]
    if rank >= len(ranks):
        raise ValueError(f"there is no rank {rank}, the plan has {len(ranks)}")
    host, kind, local = ranks[rank]
    planned = kind["ranks"][local]
    return Place(
        rank=rank,
        world_size=len(ranks),
        local_rank=local,
        local_size=len(kind["ranks"]),
        host=host,
        cpus=frozenset(parse_cpus(planned["cpus"])),
        threads=planned["threads"],
        memory=tuple(planned["memory"]),
        env=kind["env"],
    )


def torchrun_place(placement: Mapping[str, Any], environ: Mapping[str, str]) -> Place:
    """The place of a rank that torchrun has started, on hosts that are all alike.

    torchrun decides which rank it is, and may start fewer hosts than planned.

    Raises:
        ValueError: the plan has fewer ranks on a host.
    """
    numbers = (environ[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "GROUP_RANK"))
    rank, size, local, host = map(int, numbers)
    place = find_place({**placement, "hosts": [[0, 1]]}, local)
    return replace(place, rank=rank, world_size=size, host=host)


def variables(place: Place, threads: int) -> dict[str, str]:
    """Variables for the program: those of its host, and those that torchrun sets."""
    return {
        **place.env,
        "OMP_NUM_THREADS": str(threads),
        "RANK": str(place.rank),
        "WORLD_SIZE": str(place.world_size),
        "LOCAL_RANK": str(place.local_rank),
        "LOCAL_WORLD_SIZE": str(place.local_size),
        "GROUP_RANK": str(place.host),
    }


def bind_cores(place: Place) -> tuple[int, list[str]]:
    """Bind this process to its cores; returns its number of threads, and what went wrong."""
    allowed = os.sched_getaffinity(0)
    chosen = place.cpus & allowed or allowed
    problems = []
    if missing := place.cpus - allowed:
        problems.append(
            f"CPUs {format_cpus(missing)} of the plan are not allowed here; it runs on "
            f"{format_cpus(chosen)}"
        )
    try:
        os.sched_setaffinity(0, chosen)
    except OSError as error:
        problems.append(f"it cannot be bound to its cores: {error.strerror}")
    return min(place.threads, len(chosen)), problems


def call_kernel(number: int, *arguments: Any) -> int:
    """Make a system call; returns its result, or the negative errno."""
    call = ctypes.CDLL(None, use_errno=True).syscall
    call.restype = ctypes.c_long
    result = int(call(ctypes.c_long(number), *arguments))
    return result if result >= 0 else -ctypes.get_errno()


def bind_memory(nodes: Sequence[int], syscall: Syscall = call_kernel) -> list[str]:
    """Prefer NUMA nodes for memory; returns what went wrong.

    Preferred and not bound: when bound nodes are full, the kernel kills the process instead of
    using others. Kernels before 5.15 prefer one node only, here the first.
    """
    if not nodes:
        return []
    for mode, wanted in ((MPOL_PREFERRED_MANY, nodes), (MPOL_PREFERRED, nodes[:1])):
        result = syscall(
            SYS_SET_MEMPOLICY,
            ctypes.c_long(mode),
            ctypes.byref(_mask(wanted)),
            ctypes.c_ulong(NODES + 1),
        )
        if result != -errno.EINVAL:
            break
    if result >= 0:
        return []
    numbers = ", ".join(map(str, nodes))
    why = os.strerror(-result)
    if -result == errno.EPERM:
        why += "; a container needs CAP_SYS_NICE for it"
    return [f"it cannot prefer the memory of NUMA node {numbers}: {why}"]


def memory_nodes(syscall: Syscall = call_kernel) -> list[int] | None:
    """The nodes that this process prefers; [] for the default policy, None where it is unknown."""
    mode, mask = ctypes.c_int(), _mask(())
    result = syscall(
        SYS_GET_MEMPOLICY,
        ctypes.byref(mode),
        ctypes.byref(mask),
        ctypes.c_ulong(NODES + 1),
        ctypes.c_void_p(),
        ctypes.c_ulong(0),
    )
    if result < 0:
        return None
    if mode.value & MPOL_MODE == MPOL_DEFAULT:
        return []
    return [node for node in range(NODES) if mask[node // 64] >> node % 64 & 1]


def _mask(nodes: Iterable[int]) -> "ctypes.Array[ctypes.c_uint64]":
    mask = (ctypes.c_uint64 * (NODES // 64))()
    for node in nodes:
        mask[node // 64] |= 1 << node % 64
    return mask
