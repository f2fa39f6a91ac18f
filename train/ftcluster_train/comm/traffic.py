"""Counters for a rank's communication volume and waiting time, and the parts of one step."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Timeline:
    """The parts of one step of a rank. Several threads may add parts.

    Attributes:
        spans: kind of the part (forward, backward, exchange, optimizer or blocked), a note such as
            the size of an exchange, and begin and end in seconds since the timeline was created.
    """

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self.spans: list[tuple[str, str, float, float]] = []

    def add(self, kind: str, began: float, note: str = "") -> None:
        """Add a part that ends now and began at `began`, in seconds of `time.perf_counter`."""
        first, last = began - self._began, time.perf_counter() - self._began
        self.spans.append((kind, note, round(first, 6), round(last, 6)))


class Traffic:
    """The communication volume of one rank since training began.

    As a context manager, it adds the time spent in its block to `waited`.

    Attributes:
        waited: seconds in which collectives on gradients and weights blocked the rank, including
            waits for slower ranks. Communication that overlaps with computing is excluded.
        sent: minimum number of bytes that a rank must send for these collectives. An all-reduce of
            S bytes over n ranks takes 2 (n - 1) / n S, and a reduce-scatter or all-gather takes
            half of that (Thakur, Rabenseifner and Gropp 2005, Optimization of Collective
            Communication Operations in MPICH).
        collectives: number of collectives; an all-reduce in bf16 counts as two.
        timeline: the parts of the current step; None if this step is not recorded.
    """

    timeline: Timeline | None = None

    def __init__(self) -> None:
        self.waited, self.sent, self.collectives = 0.0, 0.0, 0
        self._began = 0.0

    def __enter__(self) -> None:
        self._began = time.perf_counter()

    def __exit__(self, *_: Any) -> None:
        self.waited += time.perf_counter() - self._began
        if self.timeline:
            self.timeline.add("blocked", self._began)

    @contextmanager
    def part(self, kind: str) -> Iterator[None]:
        """Add the `with` block to the timeline, if this step is recorded."""
        began = time.perf_counter()
        yield
        if self.timeline:
            self.timeline.add(kind, began)

    def add(self, size: int, ranks: int, passes: int = 1) -> None:
        """Count a collective.

        Args:
            size: bytes of the tensors of all ranks together.
            passes: 2 for an all-reduce, 1 for other collectives.
        """
        self.collectives += 1
        self.sent += passes * (ranks - 1) / ranks * size
