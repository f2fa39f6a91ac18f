"""The range of a recipe's field. Standard library only."""

from dataclasses import MISSING, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Limits:
    """The range of a field's values.

    Attributes:
        above: the exclusive lower bound.
        below: the exclusive upper bound.
        at_most: the largest number; of a list, its maximum length.
    """

    at_least: float | None = None
    above: float | None = None
    below: float | None = None
    at_most: float | None = None


def limited(default: Any = MISSING, **limits: float) -> Any:
    """A field of a dataclass with `Limits`; required where it has no default."""
    return field(default=default, metadata={"limits": Limits(**limits)})
