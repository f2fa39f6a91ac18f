"""The range of values of a recipe's field. Standard library only."""

from dataclasses import MISSING, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Limits:
    """The range of a field's values.

    Attributes:
        above: exclusive lower bound.
        below: exclusive upper bound.
        at_most: largest allowed value of a number, or maximum length of a list.
    """

    at_least: float | None = None
    above: float | None = None
    below: float | None = None
    at_most: float | None = None


def limited(default: Any = MISSING, **limits: float) -> Any:
    """Return a dataclass field with `Limits`; it is required if it has no default."""
    return field(default=default, metadata={"limits": Limits(**limits)})
