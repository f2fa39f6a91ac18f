"""Makes a program safe as process 1 of a container: reaps orphaned children, forwards signals.

The kernel makes process 1 the parent of orphaned processes, which stay zombies until it reaps them.
It also drops signals that process 1 has no handler for, such as SIGTERM. Usage:

    python -m ftcluster_common.process_one PROGRAM ARGUMENTS ...

This also works if another program is process 1 and reaps nothing, such as `sleep infinity`.
Standard library only.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Iterator

PR_SET_CHILD_SUBREAPER = 36  # Linux, include/uapi/linux/prctl.h
STOPS = {signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU}


def leave_process_one() -> None:
    """Continue in a child if this is process 1. Call it before threads are started."""
    if os.getpid() == 1:
        continue_in_child()


def continue_in_child() -> None:
    """Fork, and return only in the child; this process adopts and reaps orphans of the child.

    This process exits with the child's exit code, or 128+n after signal n.
    """
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # SIG_IGN would discard exit codes
    # sigwait receives blocked signals, even signals that the kernel would drop for process 1
    awaited = signal.valid_signals() - STOPS
    before = signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
    child = os.fork()
    if child:
        os._exit(_code_of(child, awaited))
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _code_of(child: int, awaited: set[signal.Signals]) -> int:
    """Forward signals and reap children until the child has ended; return its exit code."""
    while True:
        received = signal.sigwaitinfo(awaited)
        if received.si_signo != signal.SIGCHLD and received.si_code <= 0:  # sent by a process
            os.kill(child, received.si_signo)  # Ctrl-C reaches the child directly
        ended = dict(_ended())
        if child in ended:
            code = os.waitstatus_to_exitcode(ended[child])
            return code if code >= 0 else 128 - code


def _ended() -> Iterator[tuple[int, int]]:
    """Yield the process id and the wait status of each child that has ended."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        yield pid, status


def main() -> None:
    """Run the program in a child, and exit with its exit code."""
    continue_in_child()
    try:
        os.execvp(sys.argv[1], sys.argv[1:])
    except OSError as error:
        print(f"error: {sys.argv[1]}: {error.strerror}", file=sys.stderr)
        sys.exit(127)


if __name__ == "__main__":
    main()
