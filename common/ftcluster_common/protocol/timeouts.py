"""All timeouts of a run, computed from one setting. Standard library only."""

from collections.abc import Mapping
from dataclasses import dataclass

TIMEOUT_VARIABLE = "FTCLUSTER_TIMEOUT"  # variable with the setting, for ranks and guardians
DEFAULT_SECONDS = 10.0
BEAT_SECONDS = 1.0  # interval between two signs of life


def _times(factor: float) -> float:
    return property(lambda timeouts: timeouts.silence * factor)  # type: ignore[return-value]


@dataclass(frozen=True)
class Timeouts:
    """The longest times in seconds that a run waits before something counts as failed."""

    silence: float = DEFAULT_SECONDS  # for a sign of life of a rank or host; this is the setting
    stopped = _times(0.25)  # for a stopped rank to get SIGCONT
    last_words = _times(0.5)  # for errors of other ranks, after one rank has failed
    supervisor = _times(1.5)  # for the supervisor's sign of life, before a guardian ends its rank
    ssh = _times(1.5)  # for a command on another host, before the ranks are started
    ssh_again = _times(0.5)  # for a host that has responded before
    connect = _times(2)  # for the supervisor, before a rank is started
    # for mpirun to start a rank, and for a rank that starts up and neither computes nor reads
    start = _times(12)
    host_return = _times(12)  # for a lost host that may be rebooting
    # for all ranks at torch's rendezvous: longer than `start`, whose error names the missing rank
    join = _times(30)
    # for all ranks in a collective: far longer than `silence`, whose error names a rank that
    # hangs, because the other ranks wait in a collective while one rank evaluates or saves
    collective = _times(360)


def timeouts_of(environment: Mapping[str, str]) -> Timeouts:
    """Return the timeouts of the current run, read from its environment."""
    return Timeouts(float(environment.get(TIMEOUT_VARIABLE, DEFAULT_SECONDS)))
