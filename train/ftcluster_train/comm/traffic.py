"""Count what one rank sends during a training, and how long it waits."""

import time
from typing import Any


class Traffic:
    """The communication volume of one rank since the training began; a context manager for waits.

    Attributes:
        waited: seconds in which the rank was blocked in collectives on gradients and weights, also
            because another rank was slower. What moves while it computes is not in it.
        sent: bytes of them that it has sent, as many as each rank has to at least: of an all-reduce
            of S bytes over n ranks 2 (n - 1) / n S, of a reduce-scatter or all-gather half of that
            (Thakur, Rabenseifner and Gropp 2005, Optimization of Collective Communication
            Operations in MPICH).
        collectives: the number of them; an all-reduce in bf16 is two.
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
            size: bytes of all ranks together.
            passes: 2 for an all-reduce, 1 for others.
        """
        self.collectives += 1
        self.sent += passes * (ranks - 1) / ranks * size
