"""What is wrong with a cluster, or worth knowing of it, each with what to do about it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """One problem or warning.

    Attributes:
        host: the inventory's name, or "" where it concerns all hosts.
        what: what was found, in words.
        hint: what to do about it, or "".
        kind: ssh, launch, network, packages, result, kernel, straggler, link or busy.
    """

    host: str
    what: str
    hint: str
    kind: str
