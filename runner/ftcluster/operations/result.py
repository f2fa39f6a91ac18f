"""The result type of operations that return only a JSON document and its text."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Result:
    """A JSON document, and the same content as text.

    Attributes:
        found: the document that `--json` prints.
        text: lines for a terminal.
    """

    found: Any
    text: tuple[str, ...]

    def document(self) -> Any:
        """Return the document that `--json` prints."""
        return self.found

    def lines(self) -> list[str]:
        """Return the result as text."""
        return list(self.text)
