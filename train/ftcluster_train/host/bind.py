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
import sys

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
from ftcluster_train.host.hydra_socket import close_inherited_listeners
from ftcluster_train.host.stack_lock import hold_stack, own_stack
from ftcluster_train.io.fsync import GROUP_READS


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
    if cache := os.environ.get("PYTHONPYCACHEPREFIX"):  # of the account that trains
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
