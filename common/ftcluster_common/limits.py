"""The allowed range of the values of a recipe's field. Standard library only."""

from dataclasses import MISSING, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Limits:
    """The allowed range of a field's values; None means no bound.

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
    """Return a dataclass field with `Limits`; without a default, the field is required."""
    return field(default=default, metadata={"limits": Limits(**limits)})
