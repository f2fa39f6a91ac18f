"""One problem or warning of `ftcluster check`. Standard library only."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """One problem or warning.

    Attributes:
        host: the inventory's name, or "" where it concerns all hosts.
        what: what was found.
        hint: what to do about it, or "".
        kind: one of the kinds in docs/json.md.
    """

    host: str
    what: str
    hint: str
    kind: str
