"""One problem or warning of `ftcluster check`. Standard library only."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """One problem or warning.

    Attributes:
        host: inventory name of the host, or "" for all hosts.
        what: description of the problem.
        hint: advice for the user, or "".
        kind: kind from the list in docs/json.md.
    """

    host: str
    what: str
    hint: str
    kind: str
