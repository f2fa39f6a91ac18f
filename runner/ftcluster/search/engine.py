"""The loop of every search: ask a strategy what to try, try it, and report the results to it."""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

Attempt = TypeVar("Attempt", covariant=True)
Result = TypeVar("Result", contravariant=True)


class Strategy(Protocol[Attempt, Result]):
    """Chooses what to try next by the results so far."""

    def ask(self) -> Sequence[Attempt]:
        """Return what to try next, at the same time; nothing ends the search.

        Until `tell` has the results, the same attempts are returned.
        """

    def tell(self, results: Sequence[Result]) -> None:
        """Take the results of the last attempts, in their order."""


class Listed(Strategy[Attempt, object]):
    """Tries a list that is known before, whatever the results are."""

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
    """Try what the strategy asks for until it asks for nothing.

    Args:
        try_all: returns the results of the attempts, in their order; None if some have no result
            yet, which ends the search, because the strategy would choose others without them.
    """
    while attempts := strategy.ask():
        results = try_all(attempts)
        if results is None:
            return
        strategy.tell(results)
