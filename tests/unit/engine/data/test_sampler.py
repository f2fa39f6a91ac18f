"""The sampler decides which rank trains on which sample in each step."""

import json
import math
import random
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftcluster_common.protocol.kernel_limits import EVAL_TOKENS
from ftcluster_common.recipe import Training
from ftcluster_train.engine.data.sampler import (
    BatchSampler,
    MixedSets,
    epoch_batches,
    eval_batches,
    micro_batches,
    share_of_rank,
)

MANY = 3200
# recorded by tests/engine/record_mixed_sets.py
MIXED_SETS = Path(__file__).parents[3] / "engine/mixed_sets.json"


def lengths_of(count: int, seed: int = 1) -> list[int]:
    """Return lengths as in a text corpus: many short texts, few long texts."""
    draw = random.Random(seed)
    return [min(512, 8 + int(draw.expovariate(1 / 60))) for _ in range(count)]


def order(count: int, batch_size: int = 8, **changes: Any) -> BatchSampler:
    return BatchSampler(lengths_of(count), batch_size, Training(**changes))


def padding(batches: Sequence[Sequence[int]], lengths: Sequence[int]) -> int:
    """Return the number of padding tokens."""
    return sum(max(lengths[i] for i in b) * len(b) - sum(lengths[i] for i in b) for b in batches)


def test_a_last_batch_that_is_left_out() -> None:
    found = order(403, num_train_epochs=2, dataloader_drop_last=True)
    assert (found.steps_per_epoch, found.steps) == (50, 100)
    batches = list(found)
    assert {len(batch) for batch in batches} == {8}
    for epoch in (batches[:50], batches[50:]):
        assert max(Counter(i for batch in epoch for i in batch).values()) == 1
    # each epoch skips other samples
    assert set().union(*batches[:50]) != set().union(*batches[50:])
    # if there are fewer samples than a batch needs, none is skipped
    found = order(5, num_train_epochs=2, dataloader_drop_last=True)
    assert (found.steps_per_epoch, found.steps) == (1, 2)
    assert [sorted(batch) for batch in found] == [[0, 1, 2, 3, 4]] * 2


@pytest.mark.parametrize("steps", [1, 3, 12, 13, 14, 40])
def test_max_steps_end_within_an_epoch(steps: int) -> None:
    found = order(100, max_steps=steps, num_train_epochs=1)
    everything = order(100, num_train_epochs=4)
    assert found.steps == steps
    assert list(found) == list(everything)[:steps]


@pytest.mark.parametrize(("epochs", "steps"), [(0.5, 7), (0.01, 1), (1.5, 20), (2.0, 26)])
def test_parts_of_an_epoch(epochs: float, steps: int) -> None:
    found = order(100, num_train_epochs=epochs)
    assert found.steps == len(list(found)) == steps


def test_the_order_follows_from_the_seed() -> None:
    same, again = order(200, seed=3), order(200, seed=3)
    assert list(same) == list(again) == list(same)
    first, second = list(same)[:25], list(same)[25:50]
    assert first != second
    assert {frozenset(batch) for batch in first} != {frozenset(batch) for batch in second}
    assert list(order(200, seed=4)) != list(same)
    # the data can have a separate seed
    assert list(order(200, seed=3, data_seed=9)) == list(order(200, seed=4, data_seed=9))
    assert list(order(200, seed=3, data_seed=9)) == list(order(200, seed=9))
    assert list(order(200, seed=9, data_seed=0)) == list(order(200, seed=0))


def test_grouping_can_be_switched_off() -> None:
    lengths = lengths_of(200)
    grouped, plain = Training(), Training(group_by_length=False)
    ungrouped = list(BatchSampler(lengths, 8, plain))
    assert list(BatchSampler(lengths, 8, grouped, group_by_length=False)) == ungrouped
    assert list(BatchSampler(lengths, 8, plain, group_by_length=True)) == ungrouped
    assert list(BatchSampler(lengths, 8, grouped)) != ungrouped


@pytest.mark.parametrize("epoch", [0, 1])
def test_like_lengths_leave_little_to_pad(epoch: int) -> None:
    lengths = lengths_of(MANY)
    random_ones, grouped = (
        epoch_batches(lengths, 32, 42, epoch, by_length) for by_length in (False, True)
    )
    assert padding(grouped, lengths) < 0.1 * padding(random_ones, lengths)


def test_batches_do_not_come_by_length() -> None:
    lengths = lengths_of(MANY)
    longest = [lengths[batch[0]] for batch in epoch_batches(lengths, 8, 42, 1, True)]
    assert longest != sorted(longest)
    assert longest != sorted(longest, reverse=True)
    half = len(longest) // 2
    assert sum(longest[:half]) == pytest.approx(sum(longest[half:]), rel=0.2)


@pytest.mark.parametrize("size", [1, 2, 3, 7])
@pytest.mark.parametrize("by_length", [False, True])
def test_shares_of_a_batch(size: int, by_length: bool) -> None:
    lengths = lengths_of(MANY)
    tokens, samples = [0] * size, [0] * size
    for batch in epoch_batches(lengths, 64, 42, 0, by_length):
        shares = [share_of_rank(batch, rank, size) for rank in range(size)]
        assert sorted(i for share in shares for i in share) == sorted(batch)
        assert max(map(len, shares)) - min(map(len, shares)) <= 1
        # ranks wait for the rank with the longest row
        longest = [max(lengths[i] for i in share) for share in shares]
        assert longest == sorted(longest, reverse=True)
        assert longest[-1] >= lengths[batch[size - 1]]
        for rank, share in enumerate(shares):
            tokens[rank] += sum(lengths[i] for i in share)
            samples[rank] += len(share)
    means = [own / count for own, count in zip(tokens, samples, strict=True)]
    assert min(means) > (0.95 if by_length else 0.65) * max(means)


lengths = st.lists(st.integers(1, 600), min_size=1, max_size=300)
sizes = st.integers(1, 40)
numbers = st.integers(0, 2**64)


@given(lengths, sizes, numbers, st.integers(0, 3), st.booleans())
def test_an_epoch_of_any_samples(
    lengths: list[int], batch_size: int, seed: int, epoch: int, by_length: bool
) -> None:
    batches = epoch_batches(lengths, batch_size, seed, epoch, by_length)
    assert sorted(i for batch in batches for i in batch) == list(range(len(lengths)))
    assert all(len(batch) == batch_size for batch in batches[:-1])
    assert 1 <= len(batches[-1]) <= batch_size
    for batch in batches:
        own = [lengths[i] for i in batch]
        assert own == sorted(own, reverse=True)
    if by_length and epoch == 0 and len(lengths) >= batch_size:
        assert lengths[batches[0][0]] == max(lengths)
    assert [*batches] == [*epoch_batches(lengths, batch_size, seed, epoch, by_length)]


@given(lengths, sizes, st.integers(1, 50), st.booleans(), st.booleans(), numbers)
def test_steps_of_any_samples(
    lengths: list[int], batch_size: int, steps: int, by_length: bool, drop: bool, seed: int
) -> None:
    """Any number of samples can be requested, and none repeats before all were drawn."""
    changes = {"group_by_length": by_length, "dataloader_drop_last": drop, "seed": seed}
    found = BatchSampler(lengths, batch_size, Training(max_steps=steps, **changes))
    batches = list(found)
    assert len(batches) == found.steps == steps
    if drop and len(lengths) >= batch_size:
        assert {len(batch) for batch in batches} == {batch_size}
    for begin in range(0, steps, found.steps_per_epoch):
        epoch = [i for batch in batches[begin : begin + found.steps_per_epoch] for i in batch]
        assert len(set(epoch)) == len(epoch)


@given(lengths, st.integers(1, 9), st.integers(1, 9))
def test_parts_of_any_batch(batch: list[int], size: int, parts: int) -> None:
    """Each sample is used once, and shares of ranks and parts differ by at most one sample."""
    shares = [share_of_rank(range(len(batch)), rank, size) for rank in range(size)]
    assert sorted(i for share in shares for i in share) == list(range(len(batch)))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    for share in shares:
        cut = micro_batches(share, parts)
        assert [i for part in cut for i in part] == share
        assert len(cut) == min(parts, len(share))
        if cut:
            assert max(map(len, cut)) - min(map(len, cut)) <= 1


@given(st.lists(st.integers(1, 3 * EVAL_TOKENS), max_size=60), st.integers(1, 5))
def test_an_evaluation_of_any_samples(lengths: list[int], size: int) -> None:
    batches = [batch for rank in range(size) for batch in eval_batches(lengths, rank, size)]
    assert sorted(i for batch in batches for i in batch) == list(range(len(lengths)))
    for batch in batches:
        padded = len(batch) * max(lengths[i] for i in batch)
        assert len(batch) == 1 or padded <= EVAL_TOKENS


def test_an_evaluation_takes_as_many_samples_at_once_as_it_may() -> None:
    batches = list(eval_batches([4] * 7, 0, 1, 3))
    assert [len(batch) for batch in batches] == [3, 3, 1]
    assert len(list(eval_batches([4] * 7, 0, 1))) == 1


def sets_in(batches: Sequence[Sequence[int]], sizes: Sequence[int]) -> list[list[int]]:
    """The number of the data set, and the number of samples, of each batch."""
    ends = [*accumulate(sizes)]
    return [[bisect_right(ends, batch[0]), len(batch)] for batch in batches]


@pytest.mark.parametrize("case", json.loads(MIXED_SETS.read_text())["cases"])
def test_data_sets_take_turns_as_with_sentence_transformers_and_datasets(
    case: dict[str, Any],
) -> None:
    sizes, drops = case["sizes"], case["drop_last"]
    training = Training(group_by_length=False, dataloader_drop_last=drops, num_train_epochs=1)

    def sampler(weights: Sequence[float] | None, apart: bool, times: int = 1) -> BatchSampler:
        mixed = MixedSets([size * times for size in sizes], weights, apart)
        return BatchSampler([5] * sum(mixed.sizes), case["batch_size"], training, True, mixed)

    # unlike the peer, we keep a data set that has fewer rows than a batch
    whole = [size for size in sizes if not drops or size >= case["batch_size"]]
    if whole == sizes:
        by_size = sets_in([*sampler(None, True)], sizes)
        assert sorted(by_size) == sorted(case["proportional"])
        in_turns = sets_in([*sampler([1] * len(sizes), True)], sizes)
        assert in_turns[: len(case["round_robin"])] == case["round_robin"]
    rows = [index for batch in sampler(case["weights"], False, 100) for index in batch]
    ends = [*accumulate(size * 100 for size in sizes)]
    ours = Counter(bisect_right(ends, index) for index in rows)
    drawn = sum(case["interleaved"])
    for number, count in enumerate(case["interleaved"]):
        share = ours[number] / len(rows)
        assert abs(count - drawn * share) < 4 * math.sqrt(drawn * share * (1 - share))


@pytest.mark.parametrize("apart", [True, False])
@pytest.mark.parametrize("weights", [None, [1, 1, 1], [0.2, 5, 1]])
def test_no_row_of_a_data_set_is_read_more_often_than_another(
    weights: Sequence[float] | None, apart: bool
) -> None:
    sets = MixedSets([40, 9, 17], weights, apart)
    training = Training(num_train_epochs=7)
    lengths = [5 + index * 7 % 11 for index in range(66)]
    batches = [*BatchSampler(lengths, 6, training, True, sets)]
    assert batches == [*BatchSampler(lengths, 6, training, True, sets)]
    assert batches != [*BatchSampler(lengths, 6, replace(training, seed=7), True, sets)]
    counts = Counter(index for batch in batches for index in batch)
    for start, size in zip(sets.starts, sets.sizes, strict=True):
        of_set = [counts[index] for index in range(start, start + size)]
        assert max(of_set) - min(of_set) <= 1
        if weights is None:
            assert {*of_set} == {7}
    for batch in batches if apart else ():
        assert len({bisect_right(sets.starts, index) for index in batch}) == 1
