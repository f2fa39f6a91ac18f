"""Trainings whose order of samples is recorded in sampler_orders.json.

The digests were recorded with the sampler that keeps its order in lists of Python integers. A run
must resume with the order that it started with, so no later version may change them.
"""

import hashlib
import itertools
import random
from collections.abc import Iterator, Sequence

from ftcluster_common.recipe import Training
from ftcluster_train.engine.data.sampler import BatchSampler, MixedSets

SIZES = (1, 31, 403, 5000)
MIXES = {
    "whole": (None, False), "weights": ((0.2, 5, 1), False), "apart": (None, True),
    "apart-weights": ((0.2, 5, 1), True),
}  # fmt: skip


def lengths_of(count: int) -> list[int]:
    """Return lengths as in a text corpus, with many equal ones."""
    draw = random.Random(7)
    return [min(512, 8 + int(draw.expovariate(1 / 60))) for _ in range(count)]


def samplers() -> Iterator[tuple[str, BatchSampler]]:
    """Yield the name and the sampler of each recorded training."""
    for count, batch, grouped, drop in itertools.product(
        SIZES, (1, 8, 32), (True, False), (True, False)
    ):
        training = Training(
            group_by_length=grouped, dataloader_drop_last=drop, num_train_epochs=2.5, seed=count
        )
        name = f"{count} by {batch} grouped={grouped} drop={drop}"
        yield name, BatchSampler(lengths_of(count), batch, training)
    for (name, (weights, apart)), grouped in itertools.product(MIXES.items(), (True, False)):
        sets = MixedSets((400, 97, 1203), weights, apart)
        training = Training(group_by_length=grouped, num_train_epochs=3)
        yield (
            f"mixed {name} grouped={grouped}",
            BatchSampler(lengths_of(1700), 16, training, True, sets),
        )


def digest(batches: Sequence[Sequence[int]] | BatchSampler) -> str:
    """Return a hash of the samples of all batches, in order."""
    return hashlib.sha256(repr([[*batch] for batch in batches]).encode()).hexdigest()
