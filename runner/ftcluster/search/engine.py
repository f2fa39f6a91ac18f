"""The loop of every search: ask a strategy for attempts, try them, and report the results."""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

Attempt = TypeVar("Attempt", covariant=True)
Result = TypeVar("Result", contravariant=True)


class Strategy(Protocol[Attempt, Result]):
    """A strategy that chooses the next attempts from the results so far."""

    def ask(self) -> Sequence[Attempt]:
        """Return the next attempts, to be tried in parallel; an empty result ends the search.

        Until `tell` gets the results, the same attempts are returned.
        """

    def tell(self, results: Sequence[Result]) -> None:
        """Take the results of the last attempts, in their order."""


class Listed(Strategy[Attempt, object]):
    """A strategy that tries a fixed list, regardless of the results."""

    def __init__(self, attempts: Sequence[Attempt]) -> None:
        self._attempts = attempts

    def ask(self) -> Sequence[Attempt]:
        """Return the whole list, and nothing afterwards."""
        return self._attempts

    def tell(self, results: Sequence[object]) -> None:  # noqa: ARG002
        """End the search."""
        self._attempts = ()


A = TypeVar("A")
R = TypeVar("R")


def search(strategy: Strategy[A, R], try_all: Callable[[Sequence[A]], Sequence[R] | None]) -> None:
    """Try the attempts that the strategy asks for until it asks for none.

    Args:
        try_all: function that returns the results of the attempts, in their order; None if some
            have no result yet. That ends the search, because the strategy needs all results.
    """
    while attempts := strategy.ask():
        results = try_all(attempts)
        if results is None:
            return
        strategy.tell(results)
