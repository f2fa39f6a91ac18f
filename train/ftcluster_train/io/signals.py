"""Receives signals together with their senders. Standard library only.

Python does not tell signal handlers who sent a signal. Therefore, the signals are blocked in all
threads, and a thread waits for them with sigwaitinfo(2) and calls the handler in the main thread.
"""

import contextlib
import os
import pwd
import signal
import threading
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ftcluster_common.protocol.launch import RUN_VARIABLE
from ftcluster_train.io.processes import run_of
from ftcluster_train.io.shutdown import is_stopping

WAKE_SIGNAL = signal.SIGRTMIN + 6  # interrupts the main thread; never sent to users' scripts
INIT = 1  # process id of systemd
OUTSIDE = 0  # process id of a sender outside this container
NAME_LENGTH = 64  # maximum characters of the name of an account or a program


@dataclass
class Received:
    """A signal and its sender.

    Attributes:
        number: number of the signal.
        pid: process id of the sender; OUTSIDE if this container does not see it, -1 if unknown.
        user: name of the account that sent the signal, or its number; "" if unknown.
        program: name of the sending program; "" if it is unknown, for example because it has ended.
        internal: True if a process of the same run sent the signal.
        stopping: True if the host is shutting down, False if it is not, None if this is unknown or
            not known yet.
    """

    number: int
    pid: int = -1
    user: str = ""
    program: str = ""
    internal: bool = False
    stopping: bool | None = False

    @property
    def by_shutdown(self) -> bool:
        """True if a shutdown of the host has sent the signal, or may have sent it."""
        return self.pid == INIT and self.stopping is not False

    def to_dict(self) -> dict[str, Any]:
        """Return the signal as JSON-ready data, see `rank_status.REPORT`."""
        fields = asdict(self)
        del fields["internal"]
        return fields


def take_signals(numbers: Collection[int], take: Callable[[Received], None]) -> None:
    """Call `take` in the main thread for each of these signals, like a signal handler.

    Call this in the main thread, before it starts other threads. Child processes inherit the
    blocked signals.
    """
    arrived: deque[Received] = deque()
    main, ancestors = threading.get_ident(), ancestors_of(os.getpid())
    numbers = set(numbers)

    def wait() -> None:
        while True:
            info = signal.sigwaitinfo(numbers)
            received = read_sender(info, ancestors)
            arrived.append(received)
            signal.pthread_kill(main, WAKE_SIGNAL)
            if received.pid == INIT:
                received.stopping = is_stopping()

    def wake(_number: int, _frame: Any) -> None:
        while arrived:
            take(arrived.popleft())

    signal.signal(WAKE_SIGNAL, wake)
    for number in numbers:  # a thread of a library may not block the signals
        signal.signal(number, lambda number, _frame: take(Received(number)))
    signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    threading.Thread(target=wait, daemon=True).start()


def read_sender(info: Any, ancestors: Collection[int]) -> Received:
    """Return a signal with information about its sender from /proc.

    Args:
        info: result of `signal.sigwaitinfo`.
        ancestors: ids of processes that may forward signals of the run to this process.
    """
    pid, number = info.si_pid, info.si_signo
    process = Path(f"/proc/{pid}")
    internal, program = pid in ancestors, ""
    with contextlib.suppress(OSError):  # the process has ended, or belongs to another user
        text = (process / "comm").read_text(encoding="utf-8", errors="replace").strip()
        program = "".join(letter if letter.isprintable() else "?" for letter in text)
        run = os.environ.get(RUN_VARIABLE)
        internal = internal or (run is not None and run_of(process) == run)
    stopping = None if pid == INIT else False
    return Received(number, pid, account(info.si_uid), program[:NAME_LENGTH], internal, stopping)


def account(uid: int) -> str:
    """Return the name of an account, or its number if the account has no name on this host."""
    try:
        return pwd.getpwuid(uid).pw_name[:NAME_LENGTH]
    except KeyError:
        return str(uid)


def ancestors_of(pid: int) -> set[int]:
    """Return the process ids of a process's parent, grandparent and so on, without INIT."""
    ancestors: set[int] = set()
    while pid > INIT:
        try:
            stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            break
        pid = int(stat.rpartition(")")[2].split()[1])
        ancestors.add(pid)
    return ancestors - {INIT, OUTSIDE}
