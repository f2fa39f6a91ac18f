"""Choice of the samples for each step and rank; every rank computes it from the seed alone."""

import itertools
import math
import random
from collections.abc import Iterator, Sequence

from ftcluster_common.protocol.kernel_limits import EVAL_TOKENS
from ftcluster_common.recipe import Training

# The samples of this many batches are sorted by length together, but at most a quarter of all
# samples. With larger groups the same samples would often share a batch again. transformers'
# get_length_grouped_indices does the same.
SORTED_BATCHES = 50
MIN_GROUPS = 4
# Another pass through the model costs about as much time as this many tokens: each operation starts
# again, and each weight is read and its gradient added again. MiniLM on SQuAD, 32 pairs, CPU time
# of a step with one thread and AVX512-BF16, relative to 1,024 tokens: 128 is 1.11 times as fast,
# 256 1.09, 512 1.03, 2,048 0.84. With faster matrix multiplications (AMX, many threads) a pass
# costs more tokens.
PASS_TOKENS = 256


class BatchSampler:
    """Iterates over the batches of a training: the sample indices of each step, for all ranks.

    Args:
        lengths: number of tokens of each sample in the data set.
        batch_size: number of samples of a step, over all ranks.
        group_by_length: False to ignore the recipe's setting `group_by_length`.

    Attributes:
        steps: number of optimizer steps of the whole training.
        steps_per_epoch: number of optimizer steps of one pass over the samples.
    """

    def __init__(
        self,
        lengths: Sequence[int],
        batch_size: int,
        training: Training,
        group_by_length: bool = True,
    ) -> None:
        self._lengths, self._batch_size = lengths, batch_size
        self._seed = training.seed if training.data_seed is None else training.data_seed
        self._group_by_length = group_by_length and training.group_by_length
        whole = len(lengths) // batch_size
        self._drop_last = training.dataloader_drop_last and whole > 0
        self.steps_per_epoch = whole if self._drop_last else math.ceil(len(lengths) / batch_size)
        self.steps = math.ceil(self.steps_per_epoch * training.num_train_epochs)
        if training.max_steps > 0:
            self.steps = training.max_steps

    def __iter__(self) -> Iterator[list[int]]:
        for epoch in range(math.ceil(self.steps / self.steps_per_epoch)):
            batches = epoch_batches(
                self._lengths, self._batch_size, self._seed, epoch, self._group_by_length
            )
            if self._drop_last:
                batches = [batch for batch in batches if len(batch) == self._batch_size]
            yield from batches[: self.steps - epoch * self.steps_per_epoch]


def epoch_batches(
    lengths: Sequence[int], batch_size: int, seed: int, epoch: int, group_by_length: bool
) -> list[list[int]]:
    """Return an epoch's batches of sample indices in random order.

    Each sample is in one batch; the last batch may be smaller. Each batch begins with its longest
    sample.

    Args:
        group_by_length: True for batches of samples of similar length. Up to 50 random batches are
            sorted together and divided into new batches, which are then shuffled. The first batch
            of the training has the longest samples, so that a lack of memory shows immediately.
    """
    draw = random.Random(f"{seed} {epoch}")
    order = list(range(len(lengths)))
    draw.shuffle(order)
    if group_by_length and epoch == 0 and order:  # the first batch gets the longest sample
        longest = max(range(len(order)), key=lambda i: lengths[order[i]])
        order[0], order[longest] = order[longest], order[0]
    whole = len(order) // batch_size * batch_size
    order, rest = order[:whole], order[whole:]
    if group_by_length:
        batches_sorted = min(len(lengths) // (MIN_GROUPS * batch_size), SORTED_BATCHES)
        together = max(1, batches_sorted) * batch_size
        order = [
            index
            for begin in range(0, whole, together)
            for index in _longest_first(order[begin : begin + together], lengths)
        ]
    batches = [order[begin : begin + batch_size] for begin in range(0, whole, batch_size)]
    if group_by_length:
        draw.shuffle(batches)
        if epoch == 0 and batches:
            longest = max(range(len(batches)), key=lambda i: lengths[batches[i][0]])
            batches[0], batches[longest] = batches[longest], batches[0]
    return [_longest_first(batch, lengths) for batch in [*batches, *([rest] if rest else [])]]


def _longest_first(indices: Sequence[int], lengths: Sequence[int]) -> list[int]:
    return sorted(indices, key=lambda index: -lengths[index])


def share_of_rank(indices: Sequence[int], rank: int, size: int) -> list[int]:
    """Return the sample indices that a rank gets of a batch.

    The shares of the ranks differ by at most one sample. If the batch is sorted by length, each
    rank gets short and long samples, so that all ranks need about the same time.
    """
    return list(indices[rank::size])


def micro_batches(share: Sequence[int], parts: int) -> list[list[int]]:
    """Divide a rank's samples into `parts` micro-batches of nearly equal size.

    There are fewer micro-batches if there are fewer samples than `parts`.

    >>> micro_batches([1, 2, 3, 4, 5], 2)
    [[1, 2, 3], [4, 5]]
    """
    edges = [math.ceil(i * len(share) / parts) for i in range(parts + 1)]
    batches = [list(share[begin:end]) for begin, end in itertools.pairwise(edges)]
    return [part for part in batches if part]


def eval_batches(
    lengths: Sequence[int],
    rank: int,
    size: int,
    most: int | None = None,
    most_tokens: int = EVAL_TOKENS,
) -> Iterator[list[int]]:
    """Yield the sample indices of each evaluation batch of a rank.

    The samples of a batch have similar lengths.

    Args:
        most: maximum number of samples in a batch; None for no limit.
        most_tokens: maximum number of tokens in a batch, including padding; a batch of one sample
            may have more.
    """
    shortest_first = sorted(range(len(lengths)), key=lengths.__getitem__)
    batch: list[int] = []
    for index in shortest_first[rank::size]:
        full = len(batch) == most or (len(batch) + 1) * lengths[index] > most_tokens
        if batch and full:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch


def length_groups(lengths: Sequence[int]) -> list[list[int]]:
    """Divide texts into groups of similar length, and return the indices of each group's texts.

    The longest texts come first. A group is split where this saves the most padding, if it saves at
    least PASS_TOKENS tokens.

    >>> length_groups([500, 20, 480, 20, 20])
    [[0, 2], [1, 3, 4]]
    >>> length_groups([20, 40])
    [[1, 0]]
    """
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    return _divided(order, lengths)


def _divided(order: list[int], lengths: Sequence[int]) -> list[list[int]]:
    longest, count = lengths[order[0]], len(order)
    saved = [(count - i) * (longest - lengths[order[i]]) for i in range(count)]
    most = max(range(count), key=saved.__getitem__)
    if saved[most] < PASS_TOKENS:
        return [order]
    return _divided(order[:most], lengths) + _divided(order[most:], lengths)
