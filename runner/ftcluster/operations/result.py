"""The result of operations whose result is a document and a text, and no more."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Result:
    """What was done or found.

    Attributes:
        found: the document of `--json`.
        text: the same as text, a line each.
    """

    found: Any
    text: tuple[str, ...]

    def document(self) -> Any:
        """What `--json` prints."""
        return self.found

    def lines(self) -> list[str]:
        """The result as text."""
        return list(self.text)
