"""Counters for a rank's communication volume and waiting time during training."""

import time
from typing import Any


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
    """

    def __init__(self) -> None:
        self.waited, self.sent, self.collectives = 0.0, 0.0, 0
        self._began = 0.0

    def __enter__(self) -> None:
        self._began = time.perf_counter()

    def __exit__(self, *_: Any) -> None:
        self.waited += time.perf_counter() - self._began

    def add(self, size: int, ranks: int, passes: int = 1) -> None:
        """Count a collective.

        Args:
            size: bytes of the tensors of all ranks together.
            passes: 2 for an all-reduce, 1 for other collectives.
        """
        self.collectives += 1
        self.sent += passes * (ranks - 1) / ranks * size
