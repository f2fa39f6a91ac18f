"""Sentences for users about who stopped a run. Pure functions, standard library only."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from ftcluster_train.io.mpi_output import signal_name
from ftcluster_train.io.signals import INIT, OUTSIDE, Received
from ftcluster_train.supervisor.rank_life import RankLife

STOP, SIGNAL, SHUTDOWN = "stop", "signal", "shutdown"


@dataclass(frozen=True)
class StopCause:
    """The reason why a run was stopped.

    Attributes:
        cause: STOP, SIGNAL or SHUTDOWN.
        message: who stopped the run, and where.
    """

    cause: str = ""
    message: str = ""


NO_CAUSE = StopCause()


def by_command(user: str) -> StopCause:
    """Return the cause of a run that `ftcluster stop` ended.

    Args:
        user: user and machine of the command, such as `ops on bastion`; "" if unknown.
    """
    return StopCause(STOP, f"stopped with ftcluster stop{f' by {user}' if user else ''}")


def by_signal(received: Received, host: str, target: str, at: float) -> StopCause:
    """Return the cause of a run that a signal ended.

    Args:
        host: host of the process that got the signal.
        target: noun phrase for this process, such as `the supervisor`.
        at: time of the signal, in seconds since 1970.
    """
    name, when = signal_name(received.number), f"{time.strftime('%H:%M:%S', time.gmtime(at))} UTC"
    if received.by_shutdown:
        message = f"{host} is shutting down: systemd sent {name} to {target} at {when}"
        return StopCause(SHUTDOWN, message)
    message = f"{sender_phrase(received)} sent {name} to {target} on {host} at {when}"
    return StopCause(SIGNAL, message)


def first_signalled(lives: Sequence[RankLife]) -> RankLife | None:
    """Return the first rank that somebody outside the run has signalled, or None.

    If a host is shutting down, this is a rank of that host.
    """
    signalled = [life for life in lives if life.received]
    return min(signalled, key=_order, default=None)


def _order(life: RankLife) -> tuple[bool, float]:
    return not (life.received and life.received.by_shutdown), life.signalled


def by_signal_to_rank(life: RankLife, received: Received, clock: float) -> StopCause:
    """Return the cause of a run that a signal to a rank, or to all ranks of a host, ended.

    Args:
        clock: seconds since 1970 minus the supervisor's clock.
    """
    target = "its ranks" if received.by_shutdown else f"rank {life.rank}"
    return by_signal(received, life.host, target, life.signalled + clock)


def is_pending(life: RankLife) -> bool:
    """Return True if a guardian has yet to report whether its host is shutting down."""
    waits = life.received is not None and life.received.pid == INIT
    unknown = life.received is not None and life.received.stopping is None
    return waits and unknown and life.exit is None and not life.lost


def sender_phrase(received: Received) -> str:
    """Return a noun phrase for the sender of a signal.

    >>> sender_phrase(Received(15, 4711, "ops", "bash"))
    'ops (process 4711, bash)'
    >>> sender_phrase(Received(15, 1, "root", "systemd"))
    'systemd (process 1, as after systemctl stop or at a logout)'
    """
    if received.pid == INIT:
        return f"{received.program or 'init'} (process 1, as after systemctl stop or at a logout)"
    if received.pid == OUTSIDE:
        return "a process outside this container"
    if received.pid < 0:
        return "an unknown process"
    program = f", {received.program}" if received.program else ", which has ended"
    return f"{received.user} (process {received.pid}{program})"
