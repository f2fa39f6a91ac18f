"""Measure the time and the tokens of each rank during training."""

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
    """The times of this rank since training began.

    As a context manager, an instance measures the time for making batches.

    In a collective, all ranks wait for the slowest rank. The rank with the shortest blocked time
    did not wait, so this time is the duration of the exchange itself. Any additional blocked time
    on another rank is time spent waiting for slower ranks.

    Args:
        traffic: counters of the optimizer, including the time for which this rank was blocked.

    Attributes:
        padded_tokens: number of tokens on this rank, including padding.
        useful_tokens: number of tokens on all ranks, excluding padding.
    """

    def __init__(self, traffic: Traffic, world: World) -> None:
        self._traffic, self._world = traffic, world
        self._latency = latency_of_collectives()
        self._input = self._transfer = self._began = self._before = 0.0
        self._blocked: list[float] = []  # blocked seconds of each step since the last `over_ranks`
        self._losses: list[float] = []  # losses of this rank in these steps
        self._steps = self.padded_tokens = self.useful_tokens = 0
        self._started, self._paused = time.perf_counter(), 0.0

    def __enter__(self) -> None:
        self._began = time.perf_counter()

    def __exit__(self, *_: Any) -> None:
        self._input += time.perf_counter() - self._began

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Exclude a `with` block, such as an evaluation, from the training time."""
        began = time.perf_counter()
        yield
        self._paused += time.perf_counter() - began

    @property
    def train_seconds(self) -> float:
        """The time in seconds since training began, excluding pauses."""
        return time.perf_counter() - self._started - self._paused

    def end_step(self, loss: float, tokens: int) -> None:
        """Add a step to the counts; call this method after each step.

        Args:
            loss: loss of this rank.
            tokens: number of tokens in the samples of all ranks.
        """
        self._steps += 1
        self._losses.append(loss)
        self.useful_tokens += tokens
        self._blocked.append(self._traffic.waited - self._before)
        self._before = self._traffic.waited

    def over_ranks(self) -> tuple[float, dict[str, Any]]:
        """Compare the times of the ranks; every rank must call this method after the same step.

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
