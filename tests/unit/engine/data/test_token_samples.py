"""Token samples: packed, stored, and divided among ranks."""

import io
from pathlib import Path

import pytest

from ftcluster_train.engine.data.pieces import pieces
from ftcluster_train.engine.data.token_samples import Samples, SampleWriter, move_tail, token_kind
from ftcluster_train.engine.tasks.lm.packing import Packer


def write(folder: Path, rows: list[list[int]], **about: object) -> Samples:
    writer = SampleWriter(folder, {"input_ids": "H", "label": "d"})
    for number, row in enumerate(rows):
        writer.add({"input_ids": row, "label": [number / 2]})
    assert len(writer) == len(rows)
    writer.close(**about)
    return Samples(folder)


def test_what_was_written_is_read(tmp_path: Path) -> None:
    samples = write(tmp_path / "s", [[1, 2, 3], [], [65535]], classes=2)
    assert len(samples) == 3
    assert list(samples) == [
        {"input_ids": [1, 2, 3], "label": [0.0]},
        {"input_ids": [], "label": [0.5]},
        {"input_ids": [65535], "label": [1.0]},
    ]
    assert samples[1:] == [samples[1], samples[2]]
    assert [*samples.lengths("input_ids")] == [3, 0, 1]
    assert samples.about["classes"] == 2
    assert samples.about["largest"]["input_ids"] == 65535
    for wrong in (3, -1):
        with pytest.raises(IndexError):
            samples[wrong]
    # many values are written in pieces
    rows = [[i % 1000] * 700 for i in range(300)]
    many = write(tmp_path / "many", rows)
    assert [sample["input_ids"] for sample in many] == rows
    # the digest depends on the values
    one, same, other = (
        write(tmp_path / name, [[1, 2], [last]]).about["sha256"]
        for name, last in (("a", 3), ("b", 3), ("c", 4))
    )
    assert one == same != other


def test_the_tail_moves_into_a_split_of_its_own(tmp_path: Path) -> None:
    write(tmp_path / "train", [[i] for i in range(10)])
    move_tail(tmp_path / "train", tmp_path / "validation", 3)
    left, moved = Samples(tmp_path / "train"), Samples(tmp_path / "validation")
    assert [sample["input_ids"] for sample in left] == [[i] for i in range(7)]
    assert [sample["input_ids"] for sample in moved] == [[7], [8], [9]]
    assert [*left.lengths("input_ids")] == [1] * 7


def test_a_token_needs_as_many_bits_as_the_vocabulary_has() -> None:
    assert (token_kind(50257), token_kind(65536), token_kind(65537)) == ("H", "H", "i")


def test_packing_keeps_every_token_in_order() -> None:
    packer = Packer(4)
    texts = [[1, 2, 3], [4], [], list(range(5, 16))]
    blocks = [block for text in texts for block in packer.add(text)]
    assert [token for block in blocks for token in block] + packer.left == list(range(1, 16))
    assert all(len(block) == 4 for block in blocks)
    assert packer.left == [13, 14, 15]


def test_long_texts_are_cut_at_the_ends_of_lines_only() -> None:
    text = "one two\nthree\n\n  four\nfive\nsix"
    found = list(pieces(io.StringIO(text), 4))
    assert "".join(piece.text for piece in found) == text
    assert [piece.last for piece in found] == [False] * (len(found) - 1) + [True]
    assert [piece.text for piece in found] == ["one two\n", "three\n\n  four\n", "five\n", "six"]
    assert list(pieces(io.StringIO(""))) == []
    assert len(list(pieces(io.StringIO(text)))) == 1
