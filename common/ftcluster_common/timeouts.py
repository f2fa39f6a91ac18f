"""All time-outs of a run, which follow from one setting. Standard library only."""

from collections.abc import Mapping
from dataclasses import dataclass

TIMEOUT_VARIABLE = "FTCLUSTER_TIMEOUT"  # the setting, for ranks and guardians
DEFAULT_SECONDS = 10.0
BEAT_SECONDS = 1.0  # between two signs of life


@dataclass(frozen=True)
class Timeouts:
    """Seconds that are waited for something before it counts as failed.

    Attributes:
        silence: for a sign of life of a rank or host; the setting.
    """

    silence: float = DEFAULT_SECONDS

    @property
    def stopped(self) -> float:
        """For SIGCONT to a rank that is stopped."""
        return self.silence / 4

    @property
    def last_words(self) -> float:
        """For other ranks' errors, after one has failed."""
        return self.silence / 2

    @property
    def supervisor(self) -> float:
        """For a sign of life of the supervisor, before a guardian ends its rank."""
        return self.silence * 1.5

    @property
    def ssh(self) -> float:
        """For a command on another host, before the ranks are started."""
        return self.silence * 1.5

    @property
    def ssh_again(self) -> float:
        """For a host that has answered before."""
        return self.silence / 2

    @property
    def connect(self) -> float:
        """For the supervisor, before a rank is started."""
        return self.silence * 2

    @property
    def start(self) -> float:
        """For mpirun to start a rank, and for ranks that start up without computing or reading."""
        return self.silence * 12

    @property
    def host_return(self) -> float:
        """For a lost host that may be rebooting."""
        return self.silence * 12

    @property
    def join(self) -> float:
        """For all ranks at torch's rendezvous: longer than `start`, which names who is missing."""
        return self.silence * 30

    @property
    def collective(self) -> float:
        """For all ranks in a collective.

        Far longer than `silence`, which names a rank that hangs: others wait in a collective while
        one rank evaluates or saves.
        """
        return self.silence * 360


def timeouts_of(environment: Mapping[str, str]) -> Timeouts:
    """Those of the run that a process belongs to."""
    return Timeouts(float(environment.get(TIMEOUT_VARIABLE, DEFAULT_SECONDS)))
