"""Time and tokens of each rank while it trains."""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ftcluster_train.comm.traffic import Traffic
from ftcluster_train.comm.world import (
    World,
    latency_of_collectives,
    least_over_ranks,
    sum_over_ranks,
)


class StepTimes:
    """Times of this rank since the training began; as a context manager it times batch making.

    In a collective all ranks wait for the last rank. So the shortest blocked time of any rank in a
    step is the exchange itself, and the additional time of another rank is waiting for a slower
    rank.

    Args:
        traffic: the optimizer's traffic, which counts how long this rank was blocked.

    Attributes:
        padded_tokens: number of tokens of this rank, with padding.
        useful_tokens: number of tokens of all ranks, without padding.
    """

    def __init__(self, traffic: Traffic, world: World) -> None:
        self._traffic, self._world = traffic, world
        self._latency = latency_of_collectives()
        self._input = self._transfer = self._began = self._before = 0.0
        self._blocked: list[float] = []  # seconds in each step since the last comparison of ranks
        self._losses: list[float] = []  # losses of this rank since then
        self._steps = self.padded_tokens = self.useful_tokens = 0
        self._started, self._paused = time.perf_counter(), 0.0

    def __enter__(self) -> None:
        self._began = time.perf_counter()

    def __exit__(self, *_: Any) -> None:
        self._input += time.perf_counter() - self._began

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Exclude evaluation and checkpoints from the training time, as a context manager."""
        began = time.perf_counter()
        yield
        self._paused += time.perf_counter() - began

    @property
    def train_seconds(self) -> float:
        """The seconds since the training began, without pauses."""
        return time.perf_counter() - self._started - self._paused

    def end_step(self, loss: float, tokens: int) -> None:
        """Count a step; call it after each step.

        Args:
            loss: loss of this rank.
            tokens: number of tokens of all ranks' samples.
        """
        self._steps += 1
        self._losses.append(loss)
        self.useful_tokens += tokens
        self._blocked.append(self._traffic.waited - self._before)
        self._before = self._traffic.waited

    def over_ranks(self) -> tuple[float, dict[str, Any]]:
        """Compare the ranks; every rank calls it after the same step.

        Returns:
            The mean loss of the steps since the last call, and fields of the event `communication`.
        """
        train_seconds = self.train_seconds
        self._transfer += sum(least_over_ranks(self._blocked))
        self._blocked.clear()
        ranks = self._world.size
        seconds_of_rank = [0.0] * (2 * ranks)
        seconds_of_rank[self._world.rank] = self._traffic.waited
        seconds_of_rank[ranks + self._world.rank] = self._input
        loss, *seconds = sum_over_ranks([math.fsum(self._losses), *seconds_of_rank])
        loss /= len(self._losses)
        self._losses.clear()
        rounded = [round(value, 6) for value in seconds]
        return loss, {
            "train_seconds": train_seconds,
            "tokens": self.padded_tokens,
            "useful_tokens": self.useful_tokens,
            "steps": self._steps,
            "waited_seconds": rounded[:ranks],
            "transfer_seconds": round(self._transfer, 6),
            "input_seconds": rounded[ranks:],
            "sent_bytes": self._traffic.sent,
            "collectives": self._traffic.collectives,
            "latency_seconds": self._latency,
        }
