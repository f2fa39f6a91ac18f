"""Where a rank runs: its CPUs and NUMA nodes by the plan, and what this host allows of it.

Standard library only: it is in every rank's way.
"""

import ctypes
import errno
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
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
    """What the plan says of one rank.

    Attributes:
        rank: from 0.
        world_size: number of ranks.
        local_rank: among the ranks of its host, from 0.
        local_size: number of ranks on its host.
        host: number of its host in the plan, the head being 0.
        cpus: the CPUs it is to run on.
        threads: OpenMP threads.
        memory: the NUMA nodes that its memory is to come from first; none: as the kernel does.
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
    """The entry of one rank.

    Args:
        placement: `kinds`, each with `env` and `ranks`; `hosts`, pairs of a kind and how many hosts
            of it follow one another.
        rank: from 0; the ranks of a host follow one another.

    Raises:
        ValueError: there are fewer ranks.
    """
    kinds = [placement["kinds"][kind] for kind, count in placement["hosts"] for _ in range(count)]
    sizes = [len(kind["ranks"]) for kind in kinds]
    first = 0
    for host, (kind, size) in enumerate(zip(kinds, sizes, strict=True)):
        if rank < first + size:
            own = kind["ranks"][rank - first]
            return Place(
                rank=rank,
                world_size=sum(sizes),
                local_rank=rank - first,
                local_size=size,
                host=host,
                cpus=frozenset(parse_cpus(own["cpus"])),
                threads=own["threads"],
                memory=tuple(own["memory"]),
                env=kind["env"],
            )
        first += size
    raise ValueError(f"there is no rank {rank}, the plan has {first}")


def variables(place: Place, threads: int) -> dict[str, str]:
    """What the program finds in its environment."""
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
    """Keep this process to its cores; returns the threads it has room for, and what went wrong."""
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
        problems.append(f"it cannot be kept to its cores: {error.strerror}")
    return min(place.threads, len(chosen)), problems


def call_kernel(number: int, *arguments: Any) -> int:
    """A system call: its result, 0 or more, or the error's number, negative."""
    call = ctypes.CDLL(None, use_errno=True).syscall
    call.restype = ctypes.c_long
    result = int(call(ctypes.c_long(number), *arguments))
    return result if result >= 0 else -ctypes.get_errno()


def bind_memory(nodes: Sequence[int], syscall: Syscall = call_kernel) -> list[str]:
    """Have memory come from some NUMA nodes first; returns what went wrong.

    Preferred and not bound: where bound nodes are full, the kernel kills instead of going on with
    others. Kernels before 5.15 prefer one node only, the first then.
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
    return [f"its memory cannot be taken from NUMA node {numbers} first: {why}"]


def memory_nodes(syscall: Syscall = call_kernel) -> list[int] | None:
    """The nodes that this process's memory comes from first; [] for the kernel's own way.

    None where the kernel does not tell.
    """
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
