from itertools import combinations

import pytest

from ftcluster_train.health.network_benchmark import (
    ALL_SECONDS,
    FIRST_BYTES,
    LARGEST_BYTES,
    LARGEST_REPEATS,
    PAIR_SECONDS,
    next_size,
    partners,
    rounds,
    seconds_per_pair,
)

SIZES = [2, 3, 4, 5, 8, 31, 32, 33]


@pytest.mark.parametrize("size", SIZES)
def test_every_pair_meets_once(size: int) -> None:
    met = [pair for pairs in rounds(size) for pair in pairs]
    assert sorted(met) == list(combinations(range(size), 2))
    # in a round, each host is in one pair at most
    for pairs in rounds(size):
        players = [player for pair in pairs for player in pair]
        assert len(players) == len(set(players)) == size - size % 2


@pytest.mark.parametrize(("size", "count"), [(0, 0), (1, 0), (2, 1), (3, 3), (4, 3), (32, 31)])
def test_there_are_as_many_rounds_as_it_takes(size: int, count: int) -> None:
    assert len(rounds(size)) == count


@pytest.mark.parametrize("size", SIZES)
def test_both_of_a_pair_have_it_in_the_same_order(size: int) -> None:
    """Otherwise two hosts could wait for each other forever."""
    schedule = rounds(size)
    for player in range(size):
        met = [pair for pairs in schedule for pair in pairs if player in pair]
        assert partners(player, size) == [sum(pair) - player for pair in met]
        assert len(set(partners(player, size))) == size - 1


def test_many_hosts_take_no_longer_than_some() -> None:
    assert seconds_per_pair(2) == seconds_per_pair(16) == PAIR_SECONDS
    for size in (32, 64, 256):
        assert seconds_per_pair(size) * len(rounds(size)) == pytest.approx(ALL_SECONDS)


def test_messages_grow_where_the_link_is_fast() -> None:
    size, sent = FIRST_BYTES, []
    while size:
        sent.append(size)
        size = next_size(size, sent.count(size), speed=1e9, seconds_left=0.1)
    assert sent[0] == FIRST_BYTES
    assert sent == sorted(sent)
    assert sent.count(LARGEST_BYTES) == LARGEST_REPEATS
    # sizes stay small on a slow network
    assert next_size(FIRST_BYTES, 1, speed=12e6, seconds_left=0.1) == 4 * FIRST_BYTES
    assert next_size(FIRST_BYTES, 1, speed=5e6, seconds_left=0.1) == FIRST_BYTES
    assert next_size(FIRST_BYTES, 1, speed=1e6, seconds_left=0.1) == 0
    assert next_size(FIRST_BYTES, 1, speed=1e9, seconds_left=-0.1) == 0
