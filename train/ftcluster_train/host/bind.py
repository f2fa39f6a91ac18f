"""Binds a rank to its cores and memory, then executes its program: what mpirun or torchrun starts.

    python -m ftcluster_train.host.bind PROGRAM ARGUMENTS ...

The plan of all ranks is in FTCLUSTER_PLACEMENT (`ftcluster_common.launch.rank_placement` makes
it), the rank in PMI_RANK or torchrun's variables. Each host's masks are computed here, on the host,
within what this process may use now. Where that fails, as in a container without the capability, a
line on stderr says so and the rank runs all the same.

The program gets the variables that torchrun sets: RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE
and GROUP_RANK. It is executed and not imported, because LD_PRELOAD is read when a process starts.

Standard library only: it delays every rank.
"""

import contextlib
import json
import os
import resource
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

from ftcluster_common.launch import PLACEMENT_VARIABLE
from ftcluster_train.errors import TrainError, error_line
from ftcluster_train.host.affinity import (
    bind_cores,
    bind_memory,
    find_place,
    torchrun_place,
    variables,
)
from ftcluster_train.host.guardian import ADDRESS, execute, guard
from ftcluster_train.host.stack_lock import hold_stack, own_stack
from ftcluster_train.io.fsync import GROUP_READS

LOOPBACK = b"lo"
FIRST = 3  # after standard input, output and error


def close_inherited_listeners(alone: bool) -> None:
    """Close the listening sockets of Hydra's proxy, which this process has inherited.

    The proxy listens at all addresses of its host for proxies of other hosts, whatever -iface says
    (seen with Intel MPI 2021.18). Where there are no other hosts, only this one may reach it.

    Args:
        alone: whether all ranks are on this host, so that the sockets are to be reached from here
            only. An ordinary user may do so since Linux 5.7; before, they stay as they are.
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
            found = socket.socket(fileno=number)
        except OSError:  # no socket, or closed by now
            continue
        if (
            found.family in (socket.AF_INET, socket.AF_INET6)
            and found.type == socket.SOCK_STREAM
            and found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        ):
            yield found
        else:
            found.detach()


def guarded(program: list[str], rank: int) -> int:
    """Run the program as the child of this process; ends as the program has ended."""
    try:
        code = guard(program, rank)
    except TrainError as error:
        print(error_line(error), flush=True)
        return 1
    if code > 128:  # mpirun names the signal of what it has started
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with contextlib.suppress(OSError):
            signal.signal(code - 128, signal.SIG_DFL)
        os.kill(os.getpid(), code - 128)
    return code


def main() -> int:
    """Entry point; returns only where the program cannot be started."""
    text = os.environ.pop(PLACEMENT_VARIABLE, None)
    by_torchrun = "TORCHELASTIC_RUN_ID" in os.environ
    if text is None or len(sys.argv) < 2 or not (by_torchrun or "PMI_RANK" in os.environ):
        print(
            f"ftcluster: {PLACEMENT_VARIABLE} and PMI_RANK are not set; start it as "
            "`ftcluster train --dry-run` shows",
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
    os.environ.update(variables(place, threads))
    home = os.environ.get("HOME", "")
    # the account's that trains has the first one
    cache = os.environ.get("PYTHONPYCACHEPREFIX") or f"{home}/.cache" * os.access(home, os.W_OK)
    if cache:
        # torch's own default is a name in /tmp, where another user could have left code to load
        folder = f"{cache}/torchinductor-{os.uname().nodename}"
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", folder)
    os.umask(GROUP_READS)  # here, because on other hosts it is that of an SSH session
    program = sys.argv[1:]
    if ADDRESS in os.environ:
        return guarded(program, place.rank)
    return execute(program)


if __name__ == "__main__":
    sys.exit(main())
