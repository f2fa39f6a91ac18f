"""The program that mpirun or torchrun starts: binds a rank to cores and memory, and executes it.

    python -m ftcluster_train.host.bind PROGRAM ARGUMENTS ...

FTCLUSTER_PLACEMENT contains the plan for all ranks (see
`ftcluster_common.protocol.launch.rank_placement`). PMI_RANK or torchrun's variables contain the
number of the rank. Of the planned CPUs, a rank uses only the CPUs that this process may use. If
binding fails, for example in a container without the capability, a message goes to stderr and the
rank runs unbound.

The program gets the variables that torchrun sets: RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE
and GROUP_RANK. `ftcluster.launch.environment` on the control node lists all stages of the program's
environment. This module executes the program instead of importing it, because LD_PRELOAD takes
effect only when a process starts.

Imports only the standard library, because every rank waits for these imports.
"""

import contextlib
import ctypes
import errno
import json
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ftcluster_common.protocol.cpu_list import format_cpus, parse_cpus
from ftcluster_common.protocol.launch import PLACEMENT_VARIABLE, SECRET_ENV_VARIABLE, unpack_env
from ftcluster_train.errors import TrainError, error_line
from ftcluster_train.io.fsync import GROUP_READS
from ftcluster_train.io.machine import cpu_quota
from ftcluster_train.io.stack import hold_stack, own_stack
from ftcluster_train.rank.guardian import ADDRESS, execute, guard

# Linux, arch/x86/entry/syscalls/syscall_64.tbl and include/uapi/linux/mempolicy.h
SYS_SET_MEMPOLICY, SYS_GET_MEMPOLICY = 238, 239
MPOL_DEFAULT, MPOL_PREFERRED, MPOL_PREFERRED_MANY = 0, 1, 5
MPOL_MODE = 0xFF  # the bits above are flags
MOST_NODES = 1024  # maximum number of nodes in any kernel (CONFIG_NODES_SHIFT 10)

Syscall = Callable[..., int]
LOOPBACK = b"lo"
FIRST = 3  # after standard input, output and error


@dataclass(frozen=True)
class Place:
    """The planned place of one rank.

    Attributes:
        host: number of the rank's host in the plan; the head is 0.
        memory: NUMA nodes that the rank prefers; empty for the kernel's default policy.
        env: variables of the rank's host.
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
    """Return the planned place of a rank; ranks are numbered from 0.

    Args:
        placement: result of `ftcluster_common.protocol.launch.rank_placement`. Ranks are numbered
            in the order of hosts.

    Raises:
        ValueError: the plan contains fewer ranks.
    """
    kinds = [placement["kinds"][kind] for kind, count in placement["hosts"] for _ in range(count)]
    ranks = [
        (host, kind, local)
        for host, kind in enumerate(kinds)
        for local in range(len(kind["ranks"]))
    ]
    if rank >= len(ranks):
        raise ValueError(f"rank {rank} is not in the plan, which contains {len(ranks)} ranks")
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
    """Return the place of a rank that torchrun has started; all hosts must be alike.

    torchrun chooses the number of the rank, and may start ranks on fewer hosts than planned.

    Raises:
        ValueError: the plan contains fewer ranks per host.
    """
    numbers = (environ[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "GROUP_RANK"))
    rank, size, local, host = map(int, numbers)
    place = find_place({**placement, "hosts": [[0, 1]]}, local)
    return replace(place, rank=rank, world_size=size, host=host)


def variables(place: Place, threads: int) -> dict[str, str]:
    """Return variables for the program: its host's variables, and the variables of torchrun."""
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
    """Bind this process to its cores; return its number of threads, and messages about problems."""
    allowed = os.sched_getaffinity(0)
    chosen = place.cpus & allowed or allowed
    problems = []
    if missing := place.cpus - allowed:
        problems.append(
            f"the planned CPUs {format_cpus(missing)} are not allowed here, so the rank runs on "
            f"CPUs {format_cpus(chosen)}"
        )
    try:
        os.sched_setaffinity(0, chosen)
    except OSError as error:
        problems.append(f"the rank cannot be bound to its cores: {error.strerror}")
    threads = min(place.threads, len(chosen))
    # a pod or a container may get less CPU time than planned
    quota = cpu_quota()
    share = threads if quota is None else max(1, int(quota / place.local_size))
    if share < threads:
        problems.append(
            f"the CPU quota of {quota:g} CPUs allows {share} for each of {place.local_size} ranks, "
            f"so the rank uses {share} threads instead of {threads}"
        )
    return min(threads, share), problems


def call_kernel(number: int, *arguments: Any) -> int:
    """Make a system call; return its result, or the negative errno."""
    call = ctypes.CDLL(None, use_errno=True).syscall
    call.restype = ctypes.c_long
    result = int(call(ctypes.c_long(number), *arguments))
    return result if result >= 0 else -ctypes.get_errno()


def bind_memory(nodes: Sequence[int], syscall: Syscall = call_kernel) -> list[str]:
    """Set the preferred NUMA nodes for memory; return messages about problems.

    The nodes are preferred and not bound, because the kernel kills a process whose bound nodes are
    full instead of using other nodes. Kernels before 5.15 can prefer only one node; they get the
    first of the nodes.
    """
    if not nodes:
        return []
    for mode, wanted in ((MPOL_PREFERRED_MANY, nodes), (MPOL_PREFERRED, nodes[:1])):
        result = syscall(
            SYS_SET_MEMPOLICY,
            ctypes.c_long(mode),
            ctypes.byref(_mask(wanted)),
            ctypes.c_ulong(MOST_NODES + 1),
        )
        if result != -errno.EINVAL:
            break
    if result >= 0:
        return []
    numbers = ", ".join(map(str, nodes))
    why = os.strerror(-result)
    if -result == errno.EPERM:
        why += "; a container needs CAP_SYS_NICE for this"
    s = "s" * (len(nodes) > 1)
    return [f"cannot set NUMA node{s} {numbers} as the preferred memory node{s}: {why}"]


def memory_nodes(syscall: Syscall = call_kernel) -> list[int] | None:
    """Return the preferred nodes of this process; [] means the default policy, None unknown."""
    mode, mask = ctypes.c_int(), _mask(())
    result = syscall(
        SYS_GET_MEMPOLICY,
        ctypes.byref(mode),
        ctypes.byref(mask),
        ctypes.c_ulong(MOST_NODES + 1),
        ctypes.c_void_p(),
        ctypes.c_ulong(0),
    )
    if result < 0:
        return None
    if mode.value & MPOL_MODE == MPOL_DEFAULT:
        return []
    return [node for node in range(MOST_NODES) if mask[node // 64] >> node % 64 & 1]


def _mask(nodes: Iterable[int]) -> "ctypes.Array[ctypes.c_uint64]":
    mask = (ctypes.c_uint64 * (MOST_NODES // 64))()
    for node in nodes:
        mask[node // 64] |= 1 << node % 64
    return mask


def close_inherited_listeners(alone: bool) -> None:
    """Close the listening sockets of Hydra's proxy, which this process has inherited.

    The proxy listens at all addresses of its host for proxies on other hosts, whatever -iface is
    (seen with Intel MPI 2021.18).

    Args:
        alone: True if all ranks are on this host, so that only this host may reach the sockets.
            Since Linux 5.7, an ordinary user may restrict a socket to the loopback interface; on
            older kernels, the sockets are not restricted.
    """
    for listener in _listeners():
        with listener:
            if alone:
                with contextlib.suppress(OSError):
                    listener.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, LOOPBACK)


def _listeners() -> Iterator[socket.socket]:
    numbers = [int(path.name) for path in Path("/proc/self/fd").iterdir()]
    for number in sorted(number for number in numbers if number >= FIRST):
        try:
            candidate = socket.socket(fileno=number)
        except OSError:  # no socket, or closed by now
            continue
        if (
            candidate.family in (socket.AF_INET, socket.AF_INET6)
            and candidate.type == socket.SOCK_STREAM
            and candidate.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        ):
            yield candidate
        else:
            candidate.detach()


def guarded(program: list[str], rank: int) -> int:
    """Run the program as a child of this process; end with its exit code or signal."""
    try:
        code = guard(program, rank)
    except TrainError as error:
        print(error_line(error), flush=True)
        return 1
    if code > 128:  # mpirun reports the signal that ends this process
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with contextlib.suppress(OSError):
            signal.signal(code - 128, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {code - 128})
        os.kill(os.getpid(), code - 128)
    return code


def main() -> int:
    """Run the program; return only if it cannot be started."""
    text = os.environ.pop(PLACEMENT_VARIABLE, None)
    by_torchrun = "TORCHELASTIC_RUN_ID" in os.environ
    if text is None or len(sys.argv) < 2 or not (by_torchrun or "PMI_RANK" in os.environ):
        print(
            f"ftcluster: {PLACEMENT_VARIABLE} or PMI_RANK is not set, or no program is given; "
            "start this program as `ftcluster train --dry-run` shows",
            file=sys.stderr,
        )
        return 2
    try:
        hold_stack(own_stack(), inherited=True)
    except TrainError as error:
        print(error_line(error), flush=True)
        return 1
    if by_torchrun:
        place = torchrun_place(json.loads(text), os.environ)
    else:
        place = find_place(json.loads(text), int(os.environ["PMI_RANK"]))
        close_inherited_listeners(alone=place.local_size == place.world_size)
    problems = bind_memory(place.memory)
    threads, more = bind_cores(place)
    for problem in problems + more:
        # one write, so that the lines of several ranks do not mix
        os.write(2, f"ftcluster: rank {place.rank} on {os.uname().nodename}: {problem}\n".encode())
    if path := os.environ.pop(SECRET_ENV_VARIABLE, ""):
        try:
            os.environ.update(unpack_env(Path(path).read_text(encoding="ascii")))
        except (OSError, ValueError):
            problem = f"{path}, the file with the variables of --env, cannot be read"
            print(error_line(TrainError(problem, "start the run again")), flush=True)
            return 1
    os.environ.update(variables(place, threads))
    # otherwise, a host's locale limits the characters that a rank can print
    os.environ.setdefault("PYTHONUTF8", "1")
    home = os.environ.get("HOME", "")
    # the training account has a cache folder, which PYTHONPYCACHEPREFIX names
    cache = os.environ.get("PYTHONPYCACHEPREFIX") or f"{home}/.cache" * os.access(home, os.W_OK)
    if cache:
        # torch's default is a folder in /tmp, where another user could place code that torch loads
        folder = f"{cache}/torchinductor-{os.uname().nodename}"
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", folder)
    os.umask(GROUP_READS)  # on other hosts, the umask comes from an SSH session
    program = sys.argv[1:]
    if ADDRESS in os.environ:
        return guarded(program, place.rank)
    return execute(program)


if __name__ == "__main__":
    sys.exit(main())
