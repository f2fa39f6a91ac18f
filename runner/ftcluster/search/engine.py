"""The loop of every search: get attempts from a strategy, try them, and return the results."""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

Attempt = TypeVar("Attempt", covariant=True)
Result = TypeVar("Result", contravariant=True)


class Strategy(Protocol[Attempt, Result]):
    """A strategy that chooses the next attempts from the results so far."""

    def ask(self) -> Sequence[Attempt]:
        """Return the next attempts, to be tried in parallel. An empty result ends the search.

        Until the results are passed to `tell`, return the same attempts again.
        """

    def tell(self, results: Sequence[Result]) -> None:
        """Process the results of the last attempts, in the order of the attempts."""


class Listed(Strategy[Attempt, object]):
    """A strategy that tries a fixed list of attempts, regardless of the results."""

    def __init__(self, attempts: Sequence[Attempt]) -> None:
        self._attempts = attempts

    def ask(self) -> Sequence[Attempt]:
        """Return the whole list until `tell` is called, and an empty list afterwards."""
        return self._attempts

    def tell(self, results: Sequence[object]) -> None:  # noqa: ARG002
        """End the search."""
        self._attempts = ()


A = TypeVar("A")
R = TypeVar("R")


def search(strategy: Strategy[A, R], try_all: Callable[[Sequence[A]], Sequence[R] | None]) -> None:
    """Try the attempts that a strategy requests, until it requests none.

    Args:
        try_all: function that tries attempts and returns their results, in the same order. It
            returns None if an attempt has no result yet. None ends the search, because the strategy
            needs all results.
    """
    while attempts := strategy.ask():
        results = try_all(attempts)
        if results is None:
            return
        strategy.tell(results)
