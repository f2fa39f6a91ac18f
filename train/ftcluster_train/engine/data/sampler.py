"""Choose the samples for each step and rank.

Every rank derives the same choice from the seed, so the ranks need not communicate.
"""

import heapq
import itertools
import math
import random
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar, overload

from ftcluster_common.protocol.kernel_limits import EVAL_TOKENS
from ftcluster_common.recipe import Training

# The samples of this many batches are sorted by length together, but never more than a quarter of
# all samples. In larger groups, the same samples would meet in a batch again and again.
# transformers' get_length_grouped_indices uses the same limits.
SORTED_BATCHES = 50
MIN_GROUPS = 4
# The fixed cost of a pass through the model, as the number of tokens that take the same time.
# The cost is fixed because each pass starts every operation, reads every weight and adds every
# gradient once more. Measured as CPU time per step with MiniLM on SQuAD (32 pairs, one thread,
# AVX512-BF16). Compared with PASS_TOKENS = 1024, a step is 1.11 times as fast with 128, 1.09 with
# 256, 1.03 with 512, and 0.84 with 2048. With faster matrix multiplications (AMX, many threads), a
# pass costs as much as a larger number of tokens.
PASS_TOKENS = 256
# Time of a token of padding, relative to other tokens, if a model's embeddings and layers skip
# padding: the outputs for padding are written and pooled as zeros. The limit of memory counts too:
# with MiniLM's width, the padding that a pass may have takes 50 MB in fp32.
SKIPPED_PADDING = 1 / 128
# Type code (module array) of sample indices. Every rank keeps the sample order of an epoch in
# memory, and a list of Python integers would need ten times as many bytes.
INDEX = "I"

T = TypeVar("T")


@dataclass(frozen=True)
class MixedSets:
    """Data sets whose samples are mixed during training.

    An epoch has as many samples as all data sets together. With weights, a data set that is smaller
    than its share of the epoch repeats samples. A data set that is larger than its share continues
    in the next epoch where it stopped.

    Attributes:
        sizes: number of samples of each data set, in the order of their indices.
        weights: weight of each data set; None if every epoch uses each sample once.
        apart: True if all samples of a batch come from one data set.
    """

    sizes: Sequence[int]
    weights: Sequence[float] | None = None
    apart: bool = False

    @property
    def starts(self) -> list[int]:
        """The index of each data set's first sample."""
        return [*itertools.accumulate(self.sizes[:-1], initial=0)]


@dataclass(frozen=True)
class EpochBatches(Sequence[list[int]]):
    """The batches of an epoch, each of which begins with its longest sample.

    To save memory, a batch is computed only when it is read.

    Attributes:
        order: sample indices; each batch consists of `batch_size` consecutive indices.
        numbers: positions of the batches in `order`, in the order in which the epoch uses them.
        lengths: number of tokens in each sample.
        start: offset that is added to each sample index.
    """

    order: "array[int]"
    batch_size: int
    numbers: "array[int]"
    lengths: Sequence[int]
    start: int = 0

    def __len__(self) -> int:
        return len(self.numbers)

    @overload
    def __getitem__(self, index: int) -> list[int]: ...

    @overload
    def __getitem__(self, index: slice) -> "EpochBatches": ...

    def __getitem__(self, index: int | slice) -> "list[int] | EpochBatches":
        if isinstance(index, slice):
            return replace(self, numbers=self.numbers[index])
        begin = self.numbers[index] * self.batch_size
        indices = _longest_first(self.order[begin : begin + self.batch_size], self.lengths)
        return [self.start + number for number in indices] if self.start else indices


class BatchSampler:
    """Iterates over the batches of a run: the sample indices of each step, over all ranks.

    Args:
        lengths: number of tokens of each sample in the data set.
        batch_size: number of samples of a step, over all ranks.
        group_by_length: False to ignore the recipe's setting `group_by_length`.
        sets: data sets that the samples come from; None for a single data set.

    Attributes:
        steps: total number of optimizer steps.
        steps_per_epoch: number of optimizer steps of one pass over the samples.
    """

    def __init__(
        self,
        lengths: Sequence[int],
        batch_size: int,
        training: Training,
        group_by_length: bool = True,
        sets: MixedSets | None = None,
    ) -> None:
        self._lengths, self._batch_size = lengths, batch_size
        self._sets = sets or MixedSets([len(lengths)])
        self._seed = training.seed if training.data_seed is None else training.data_seed
        self._group_by_length = group_by_length and training.group_by_length
        self._drop_last = training.dataloader_drop_last
        sizes = self._sets.sizes if self._sets.apart else [len(lengths)]
        self._batches = [self._count(size) for size in sizes]  # batches per set and pass
        self.steps_per_epoch = sum(self._batches)
        self.steps = math.ceil(self.steps_per_epoch * training.num_train_epochs)
        if training.max_steps > 0:
            self.steps = training.max_steps

    def __iter__(self) -> Iterator[list[int]]:
        for epoch in range(math.ceil(self.steps / self.steps_per_epoch)):
            batches = self._batches_apart(epoch) if self._sets.apart else self._batches_mixed(epoch)
            yield from itertools.islice(batches, self.steps - epoch * self.steps_per_epoch)

    def _count(self, samples: int) -> int:
        """Return the number of batches in one pass over `samples` samples."""
        whole = samples // self._batch_size
        return whole if self._drop_last and whole else math.ceil(samples / self._batch_size)

    def _epoch_batches(
        self, lengths: Sequence[int], seed: int | str, epoch: int, indices: Sequence[int] | None
    ) -> EpochBatches:
        batches = epoch_batches(
            lengths, self._batch_size, seed, epoch, self._group_by_length, indices
        )
        return batches[: self._count(len(lengths) if indices is None else len(indices))]

    def _batches_mixed(self, epoch: int) -> EpochBatches:
        """Return the batches of an epoch, whose batches may mix several data sets."""
        sets = self._sets
        if sets.weights is None:
            return self._epoch_batches(self._lengths, self._seed, epoch, None)
        counts = apportioned(len(self._lengths), sets.weights)
        indices = array(INDEX)
        for number, (start, size, count) in enumerate(
            zip(sets.starts, sets.sizes, counts, strict=True)
        ):
            seed = f"{self._seed}/{number}"
            passes = partial(shuffled, range(start, start + size), seed)
            indices.extend(part_of_passes(passes, size, epoch * count, count))
        return self._epoch_batches(self._lengths, self._seed, epoch, indices)

    def _batches_apart(self, epoch: int) -> Iterator[list[int]]:
        """Yield the batches of an epoch, each from one data set.

        The batches of each data set are spread evenly over the epoch.
        """
        sets = self._sets
        counts, weights = self._batches, sets.weights
        if weights is not None:
            counts = apportioned(sum(self._batches), weights)
        streams: list[Iterator[tuple[float, int, list[int]]]] = []
        for number, (start, size, count) in enumerate(
            zip(sets.starts, sets.sizes, counts, strict=True)
        ):
            passes = partial(self._pass_of_set, number, start, size)
            batches = part_of_passes(passes, self._batches[number], epoch * count, count)
            weight = count if weights is None else weights[number]
            streams.append(_placed(batches, number, weight))
        for _, _, batch in heapq.merge(*streams, key=lambda place: place[:2]):
            yield batch

    def _pass_of_set(self, number: int, start: int, size: int, epoch: int) -> EpochBatches:
        lengths = self._lengths[start : start + size]
        batches = self._epoch_batches(lengths, f"{self._seed}/{number}", epoch, None)
        return replace(batches, start=start)


def _placed(
    batches: Iterable[list[int]], number: int, weight: float
) -> Iterator[tuple[float, int, list[int]]]:
    """Yield a data set's batches with sort keys, for merging them evenly with other data sets."""
    for i, batch in enumerate(batches):
        yield (i + 0.5) / weight, number, batch


def shuffled(indices: Iterable[int], seed: int | str, epoch: int) -> "array[int]":
    """Return the indices in the random order of an epoch."""
    order = array(INDEX, indices)
    random.Random(f"{seed} {epoch}").shuffle(order)
    return order


def part_of_passes(
    passes: Callable[[int], Sequence[T]], length: int, begin: int, count: int
) -> Iterator[T]:
    """Yield `count` elements, starting at index `begin`, from an endless sequence of passes.

    Args:
        passes: function that returns the elements of the pass with a given number.
        length: number of elements in each pass.

    >>> [*part_of_passes(lambda number: [f"{number}a", f"{number}b"], 2, 1, 3)]
    ['0b', '1a', '1b']
    """
    end = begin + count
    for number in range(begin // length, math.ceil(end / length)):
        first = number * length
        yield from passes(number)[max(begin - first, 0) : end - first]


def apportioned(total: int, weights: Sequence[float]) -> list[int]:
    """Divide `total` into whole numbers that are proportional to the weights.

    Each number is at least 1 if `total` is large enough.

    >>> apportioned(10, [2, 1]), apportioned(10, [1, 1000])
    ([7, 3], [1, 9])
    """
    exact = [total * weight / sum(weights) for weight in weights]
    counts = [max(int(share), min(1, total // len(weights))) for share in exact]
    while (missing := total - sum(counts)) != 0:  # adjust the largest deviation first
        step = 1 if missing > 0 else -1
        able = [i for i in range(len(counts)) if step > 0 or counts[i] > 1]
        number = max(able, key=lambda i: (step * (exact[i] - counts[i]), -i))
        counts[number] += step
    return counts


def epoch_batches(
    lengths: Sequence[int],
    batch_size: int,
    seed: int | str,
    epoch: int,
    group_by_length: bool,
    indices: Sequence[int] | None = None,
) -> EpochBatches:
    """Return an epoch's batches of sample indices in random order.

    Each sample is in one batch; the last batch may be smaller.

    Args:
        indices: sample indices of the epoch, which may repeat; None to use each sample once.
        group_by_length: True to put samples of similar length into the same batch. The samples of
            up to 50 random batches are sorted together and divided into new batches, which are then
            shuffled. The very first batch contains the longest sample, so that a lack of memory
            shows immediately.
    """
    draw = random.Random(f"{seed} {epoch}")
    order = array(INDEX, range(len(lengths)) if indices is None else indices)
    draw.shuffle(order)
    if group_by_length and epoch == 0 and order:  # the first batch gets the longest sample
        longest = max(range(len(order)), key=lambda i: lengths[order[i]])
        order[0], order[longest] = order[longest], order[0]
    count = len(order)
    whole = count // batch_size
    numbers = array(INDEX, range(whole))
    if group_by_length:
        batches_sorted = min(count // (MIN_GROUPS * batch_size), SORTED_BATCHES)
        together = max(1, batches_sorted) * batch_size
        for begin in range(0, whole * batch_size, together):
            end = min(begin + together, whole * batch_size)
            order[begin:end] = array(INDEX, _longest_first(order[begin:end], lengths))
        draw.shuffle(numbers)
        if epoch == 0 and numbers:
            longest = max(range(whole), key=lambda i: lengths[order[numbers[i] * batch_size]])
            numbers[0], numbers[longest] = numbers[longest], numbers[0]
    if count % batch_size:
        numbers.append(whole)
    return EpochBatches(order, batch_size, numbers, lengths)


def _longest_first(indices: Sequence[int], lengths: Sequence[int]) -> list[int]:
    return sorted(indices, key=lambda index: -lengths[index])


def share_of_rank(indices: Sequence[int], rank: int, size: int) -> list[int]:
    """Return a rank's share of the sample indices of a batch.

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
        most: maximum number of samples in a batch; None means no limit.
        most_tokens: maximum number of tokens in a batch, including padding. A batch with only one
            sample may exceed it.
    """
    batch: list[int] = []
    for index in shortest_first(lengths)[rank::size]:
        full = len(batch) == most or (len(batch) + 1) * lengths[index] > most_tokens
        if batch and full:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch


def shortest_first(lengths: Sequence[int]) -> "array[int]":
    """Return the indices in ascending order of the lengths; equal lengths keep their order.

    >>> [*shortest_first([5, 2, 5, 1])]
    [3, 1, 0, 2]
    """
    counts = Counter(lengths)
    in_order = sorted(counts)
    starts = itertools.accumulate((counts[length] for length in in_order[:-1]), initial=0)
    places = dict(zip(in_order, starts, strict=False))
    order = array(INDEX, bytes(array(INDEX).itemsize * len(lengths)))
    for index, length in enumerate(lengths):
        order[places[length]] = index
        places[length] += 1
    return order


def length_groups(lengths: Sequence[int], skips_padding: bool = False) -> list[list[int]]:
    """Divide texts into groups of similar length, and return the indices of each group's texts.

    The longest texts come first. A group is split where the split saves the most padding, but only
    if it saves the time of at least PASS_TOKENS tokens.

    Args:
        skips_padding: True if the model's layers skip padding.

    >>> length_groups([500, 20, 480, 20, 20])
    [[0, 2], [1, 3, 4]]
    >>> length_groups([20, 40])
    [[1, 0]]
    >>> length_groups([500, 20, 480, 20, 20], skips_padding=True)
    [[0, 2, 1, 3, 4]]
    """
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    return _divided(order, lengths, PASS_TOKENS / (SKIPPED_PADDING if skips_padding else 1))


def _divided(order: list[int], lengths: Sequence[int], least_saved: float) -> list[list[int]]:
    longest, count = lengths[order[0]], len(order)
    saved = [(count - i) * (longest - lengths[order[i]]) for i in range(count)]
    most = max(range(count), key=saved.__getitem__)
    if saved[most] < least_saved:
        return [order]
    parts = order[:most], order[most:]
    return [group for part in parts for group in _divided(part, lengths, least_saved)]
