"""Where the time of each rank goes while it trains."""

import time
from typing import Any

from ftcluster_train.comm.traffic import Traffic
from ftcluster_train.comm.world import (
    World,
    latency_of_collectives,
    least_over_ranks,
    sum_over_ranks,
)


class StepTimes:
    """Of this rank, since the training began; a context manager around what makes a batch.

    In a collective all ranks wait for the last one, so what the rank that was blocked least in a
    step was blocked is the exchange itself, and what another one was blocked longer is waiting for
    that rank.

    Args:
        traffic: of the optimizer, which knows how long this rank was blocked.
    """

    def __init__(self, traffic: Traffic, world: World) -> None:
        self._traffic, self._world = traffic, world
        self._latency = latency_of_collectives()
        self._input = self._transfer = self._began = self._before = 0.0
        self._blocked: list[float] = []  # in each step since the ranks compared them
        self._steps = 0

    def __enter__(self) -> None:
        self._began = time.perf_counter()

    def __exit__(self, *_: Any) -> None:
        self._input += time.perf_counter() - self._began

    def end_step(self) -> None:
        """Call after each step."""
        self._steps += 1
        self._blocked.append(self._traffic.waited - self._before)
        self._before = self._traffic.waited

    def over_ranks(self, loss: float) -> tuple[float, dict[str, Any]]:
        """Compare the ranks; every rank calls it after the same step.

        Args:
            loss: of this rank.

        Returns:
            The sum of the losses, and fields of the event `communication`.
        """
        self._transfer += sum(least_over_ranks(self._blocked))
        self._blocked.clear()
        ranks = self._world.size
        own = [0.0] * (2 * ranks)
        own[self._world.rank], own[ranks + self._world.rank] = self._traffic.waited, self._input
        loss, *seconds = sum_over_ranks([loss, *own])
        rounded = [round(one, 6) for one in seconds]
        return loss, {
            "steps": self._steps,
            "waited_seconds": rounded[:ranks],
            "transfer_seconds": round(self._transfer, 6),
            "input_seconds": rounded[ranks:],
            "sent_bytes": self._traffic.sent,
            "collectives": self._traffic.collectives,
            "latency_seconds": self._latency,
        }
