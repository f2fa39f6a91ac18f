"""Packing of whole documents into bins."""

import random

import pytest

from ftcluster_train.engine.tasks.chat.packing import DocumentPacker


@pytest.mark.parametrize("open_bins", [1, 16, 1000])
def test_each_document_is_in_one_bin_that_has_room(open_bins: int) -> None:
    draw = random.Random(open_bins)
    lengths = [draw.choice([1, 5, 50, 99, 100, draw.randrange(1, 101)]) for _ in range(500)]
    packer = DocumentPacker[int](100, open_bins)
    bins = [found for i, length in enumerate(lengths) for found in packer.add(i, length)]
    bins += packer.close()
    assert sorted(i for found in bins for i in found) == list(range(500))
    assert all(sum(lengths[i] for i in found) <= 100 for found in bins)
    assert list(packer.close()) == []
    if open_bins > 1:  # at most a tenth of the space is unused
        assert len(bins) * 100 <= 1.1 * sum(lengths)


def test_the_fullest_bin_that_has_room_gets_a_document() -> None:
    packer = DocumentPacker[str](10)
    assert list(packer.add("six", 6)) == []
    assert list(packer.add("seven", 7)) == []
    assert list(packer.add("three", 3)) == [["seven", "three"]]
    assert list(packer.add("ten", 10)) == [["ten"]]
    assert list(packer.close()) == [["six"]]
