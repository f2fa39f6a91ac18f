"""A set of hashes that needs 8 bytes for each of them, and a numbering that needs 20."""

import tracemalloc
from array import array
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from ftcluster_common.models.row_hashes import ROWS, HashNumbers, RowHashes, read_rows, write_rows

hashes = st.lists(st.integers(0, 2**64 - 1), max_size=40)


@given(hashes, hashes)
def test_it_behaves_as_a_set(first: list[int], second: list[int]) -> None:
    ours, theirs = RowHashes(first), set(first)
    assert [number in ours for number in [*first, *second]] == [
        number in theirs for number in [*first, *second]
    ]
    for number in second:
        ours.add(number)
        theirs.add(number)
    assert [*ours] == sorted(theirs)
    assert len(ours) == len(theirs)


def test_the_file_has_the_hashes_in_ascending_order(tmp_path: Path) -> None:
    write_rows(tmp_path / ROWS, RowHashes([2**63, 5, 5, 2**64 - 1]))
    assert (tmp_path / ROWS).read_bytes() == array("Q", [5, 2**63, 2**64 - 1]).tobytes()
    assert [*read_rows(tmp_path)] == [5, 2**63, 2**64 - 1]


def test_a_folder_without_the_file_has_no_hashes(tmp_path: Path) -> None:
    assert len(read_rows(tmp_path)) == 0


def test_a_truncated_file_has_its_whole_hashes(tmp_path: Path) -> None:
    (tmp_path / ROWS).write_bytes(array("Q", [7, 9]).tobytes()[:-3])
    assert [*read_rows(tmp_path)] == [7]


def test_many_hashes_need_little_memory() -> None:
    tracemalloc.start()
    try:
        ours = RowHashes(number * 0x9E3779B97F4A7C15 % 2**64 for number in range(200_000))
        assert 12345 not in ours
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # 8 bytes each; growing arrays have spare room, and one of 256 parts is sorted at a time
    assert peak < 200_000 * 12 + (1 << 18)


@given(st.lists(st.integers(0, 9) | st.integers(0, 2**64 - 1), max_size=60), hashes)
def test_hashes_are_numbered_as_by_a_dictionary(added: list[int], others: list[int]) -> None:
    ours, theirs = HashNumbers(), dict[int, int]()
    for number in added:
        assert ours.add(number) == theirs.setdefault(number, len(theirs))
    assert len(ours) == len(theirs)
    assert [ours.get(n) for n in [*added, *others]] == [theirs.get(n) for n in [*added, *others]]


def test_many_numbered_hashes_need_little_memory() -> None:
    count = 200_000
    tracemalloc.start()
    try:
        ours = HashNumbers()
        for number in range(count):
            ours.add(number * 0x9E3779B97F4A7C15 % 2**64)
        # equal low bits: each hash is one slot behind the slot that it should have
        assert [ours.add(number * 0x9E3779B97F4A7C15 % 2**64) for number in (7, count - 1)] == [
            7, count - 1,
        ]  # fmt: skip
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # 8 bytes for the hash, 4 for each of at most 3 slots, and spare room of growing arrays
    assert peak < count * 24
