"""Which samples a rank computes in which step. Every rank computes the same, so none is told."""

import math
import random
from collections.abc import Iterator, Sequence

from ftcluster_common.recipe import Training

# Batches whose samples are sorted by length together: so many, but at most a quarter of all (as
# transformers' get_length_grouped_indices has it), so that few samples meet again and again.
TOGETHER = 50
PARTS = 4
EVAL_TOKENS = 8192  # of a rank at once; without gradients there is room for more than in training


class Order:
    """Which samples are learned in which step; iterating gives each step's indices.

    Args:
        lengths: tokens of each sample.
        batch_size: samples of a step, all ranks together.
        training: the recipe's.
        by_length: False overrules the recipe's group_by_length.

    Attributes:
        samples: that there are.
        steps: optimizer steps of the whole training.
        steps_per_epoch: of one pass over the samples.
    """

    def __init__(
        self, lengths: Sequence[int], batch_size: int, training: Training, by_length: bool = True
    ) -> None:
        self._lengths, self._batch_size = lengths, batch_size
        self._seed = training.seed if training.data_seed is None else training.data_seed
        self._by_length = by_length and training.group_by_length
        whole = len(lengths) // batch_size
        self._drop_last = training.dataloader_drop_last and whole > 0
        self.samples = len(lengths)
        self.steps_per_epoch = whole if self._drop_last else math.ceil(len(lengths) / batch_size)
        self.steps = math.ceil(self.steps_per_epoch * training.num_train_epochs)
        if training.max_steps > 0:
            self.steps = training.max_steps

    def __iter__(self) -> Iterator[list[int]]:
        for epoch in range(math.ceil(self.steps / self.steps_per_epoch)):
            batches = epoch_batches(
                self._lengths, self._batch_size, self._seed, epoch, self._by_length
            )
            if self._drop_last:
                batches = [batch for batch in batches if len(batch) == self._batch_size]
            yield from batches[: self.steps - epoch * self.steps_per_epoch]


def epoch_batches(
    lengths: Sequence[int], batch_size: int, seed: int, epoch: int, by_length: bool
) -> list[list[int]]:
    """Indices of each batch of an epoch, all ranks together, in a random order.

    No sample is left out and none comes twice; the last batch is smaller where `batch_size` does
    not divide the number of samples. Each batch is sorted by length, the longest first.

    Args:
        lengths: tokens of each sample.
        batch_size: samples of a step.
        seed: of the order.
        epoch: from 0; each has another order.
        by_length: whether batches are of samples of like length. Of up to 50 random batches the
            samples of like length are then put together, and the batches come in a random order
            again; only the very first has the longest samples, so that memory that is too small
            shows at once.
    """
    draw = random.Random(f"{seed} {epoch}")
    order = list(range(len(lengths)))
    draw.shuffle(order)
    if by_length and epoch == 0 and order:  # it must not be among the rest
        longest = max(range(len(order)), key=lambda i: lengths[order[i]])
        order[0], order[longest] = order[longest], order[0]
    whole = len(order) // batch_size * batch_size
    order, rest = order[:whole], order[whole:]
    if by_length:
        together = max(1, min(len(lengths) // (PARTS * batch_size), TOGETHER)) * batch_size
        order = [
            index
            for begin in range(0, whole, together)
            for index in _longest_first(order[begin : begin + together], lengths)
        ]
    batches = [order[begin : begin + batch_size] for begin in range(0, whole, batch_size)]
    if by_length:
        draw.shuffle(batches)
        if epoch == 0 and batches:
            longest = max(range(len(batches)), key=lambda i: lengths[batches[i][0]])
            batches[0], batches[longest] = batches[longest], batches[0]
    return [_longest_first(batch, lengths) for batch in [*batches, *([rest] if rest else [])]]


def _longest_first(indices: Sequence[int], lengths: Sequence[int]) -> list[int]:
    return sorted(indices, key=lambda index: -lengths[index])


def own_share(indices: Sequence[int], rank: int, size: int) -> list[int]:
    """What one of `size` ranks has of a batch; the shares differ by one sample at most.

    Of a batch that is sorted by length each has samples of all lengths, so none waits for another.
    """
    return list(indices[rank::size])


def micro_batches(share: Sequence[int], parts: int) -> list[list[int]]:
    """A rank's share in `parts` that differ by one sample at most; fewer where it has too few.

    >>> micro_batches([1, 2, 3, 4, 5], 2)
    [[1, 2, 3], [4, 5]]
    """
    edges = [math.ceil(i * len(share) / parts) for i in range(parts + 1)]
    cut = [list(share[edges[i] : edges[i + 1]]) for i in range(parts)]
    return [part for part in cut if part]


def eval_batches(lengths: Sequence[int], rank: int, size: int) -> Iterator[list[int]]:
    """Indices of a rank's batches of an evaluation: samples of like length together.

    Args:
        lengths: tokens of each sample.
        rank: from 0.
        size: number of ranks.
    """
    by_length = sorted(range(len(lengths)), key=lengths.__getitem__)
    batch: list[int] = []
    for index in by_length[rank::size]:  # each is at least as long as those before it
        if batch and (len(batch) + 1) * lengths[index] > EVAL_TOKENS:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch
