"""The first process of a container: it has to collect what others leave, and to pass signals on.

The kernel makes process 1 the parent of processes whose own has ended, and they stay as zombies
until it asks for them. It also drops signals that process 1 has no handler for, such as SIGTERM.

    python -m ftcluster_common.process_one PROGRAM ARGUMENTS ...

runs a program so, also beside a process 1 that collects nothing, such as `sleep infinity`.
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
    """Go on in a child, where this process is process 1; call it before threads are started."""
    if os.getpid() == 1:
        go_on_in_a_child()


def go_on_in_a_child() -> None:
    """Return in a child only. This process becomes the parent of all that the child leaves behind.

    It ends as the child does: with its exit code, or 128+n after signal n.
    """
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, the kernel would keep no exit codes
    # blocked signals wait for sigwait, also those that process 1 would not get
    awaited = signal.valid_signals() - STOPS
    before = signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
    child = os.fork()
    if child:
        os._exit(_code_of(child, awaited))
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _code_of(child: int, awaited: set[int]) -> int:
    """Pass signals on and collect all that end, until the child has ended; returns its code."""
    while True:
        received = signal.sigwaitinfo(awaited)
        if received.si_signo != signal.SIGCHLD and received.si_code <= 0:  # <= 0: of a process
            os.kill(child, received.si_signo)  # a terminal's Ctrl-C reaches the child by itself
        ended = dict(_ended())
        if child in ended:
            code = os.waitstatus_to_exitcode(ended[child])
            return code if code >= 0 else 128 - code


def _ended() -> Iterator[tuple[int, int]]:
    """Number and status of each child that has ended."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        yield pid, status


def main() -> None:
    """Entry point; ends as the program has ended."""
    go_on_in_a_child()
    try:
        os.execvp(sys.argv[1], sys.argv[1:])
    except OSError as error:
        print(f"error: {sys.argv[1]}: {error.strerror}", file=sys.stderr)
        sys.exit(127)


if __name__ == "__main__":
    main()
