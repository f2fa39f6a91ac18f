"""Hosts that a run does not use, each with the reason and the remedy. Pure functions."""

from collections.abc import Mapping
from dataclasses import dataclass

from ftcluster.cluster.record import Drained


@dataclass(frozen=True)
class AbsentHost:
    """A host of the cluster that a run does not use.

    Attributes:
        name: the host's name in the inventory.
        why: the reason as a predicate, such as "does not answer".
        remedy: advice on how to use the host again.
    """

    name: str
    why: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.name} {self.why}; {self.remedy}"


def drained_hosts(drained: Mapping[str, Drained]) -> tuple[AbsentHost, ...]:
    """Return the drained hosts.

    >>> str(*drained_hosts({"xeon2": Drained("bad memory", "2026-11-23")}))
    'xeon2 is drained (bad memory, since 2026-11-23); to use it again: ftcluster hosts return xeon2'
    """
    return tuple(
        AbsentHost(
            name,
            f"is drained ({reason.why}, since {reason.since})",
            f"to use it again: ftcluster hosts return {name}",
        )
        for name, reason in drained.items()
    )
