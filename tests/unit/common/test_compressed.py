"""Data files that are compressed with gzip are read like the same files without it."""

import gzip
import re
import zlib
from pathlib import Path

import pytest

from ftcluster.errors import InputError
from ftcluster.recipe.dataset_checks import check_data
from ftcluster.recipe.recipe import load_recipe
from ftcluster_common.data import compressed
from ftcluster_common.data.data_files import DataError, Table, files_of, texts_of

CONTENTS = {
    "train.csv": 'text,label\n"so, it is",0\nno,1\n',
    "dev.tsv": "text\tlabel\nso it is\t0\nno\t1\n",
    "test.jsonl": '{"text": "so", "label": 0}\n\n{"text": "no", "label": 1}\n',
    "validation_matched.json": '[{"text": "so", "label": 0}, {"text": "no", "label": 1}]',
    "ner.conll": "EU B-ORG\nsays O\n\nno O\n",
}


@pytest.mark.parametrize("name", CONTENTS)
def test_rows_and_splits_are_those_of_the_unpacked_file(tmp_path: Path, name: str) -> None:
    (tmp_path / "plain").mkdir()
    (tmp_path / "packed").mkdir()
    plain, packed = tmp_path / "plain" / name, tmp_path / "packed" / f"{name}.gz"
    plain.write_text(CONTENTS[name])
    packed.write_bytes(gzip.compress(CONTENTS[name].encode()))
    assert [*Table((packed,))] == [*Table((plain,))]
    assert list(files_of(packed.parent)) == list(files_of(plain.parent))
    places = [where for where, _ in Table((packed,)).with_places()]
    assert places == [
        where.replace(str(plain), str(packed)) for where, _ in Table((plain,)).with_places()
    ]


def test_other_encodings_and_texts_are_read_through_gzip(tmp_path: Path) -> None:
    rows = gzip.compress("text,label\r\nça va,0\r\n".encode("cp1252"))
    (tmp_path / "train.csv.gz").write_bytes(rows)
    assert [row["text"] for row in Table((tmp_path / "train.csv.gz",))] == ["ça va"]
    (tmp_path / "train.csv.gz").write_bytes(gzip.compress("text,label\nno,0\n".encode("utf-16")))
    assert [row["text"] for row in Table((tmp_path / "train.csv.gz",))] == ["no"]
    (tmp_path / "wiki.valid.txt.gz").write_bytes(gzip.compress(b"A text.\n"))
    assert list(texts_of(tmp_path)) == []  # rows come first
    (tmp_path / "train.csv.gz").unlink()
    assert list(texts_of(tmp_path)) == ["validation"]


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-9],
        lambda _: b"text,label\n",
        lambda data: data[:12] + b"\xff\xff\xff\xff" + data[16:],
        lambda data: data[:-8] + bytes(8),  # wrong checksum
    ],
    ids=["cut", "not compressed", "damaged", "checksum"],
)
def test_damaged_gzip_is_refused_with_its_file(tmp_path: Path, damage: object) -> None:
    path = tmp_path / "train.jsonl.gz"
    path.write_bytes(damage(gzip.compress(b'{"text": "so it goes", "label": 0}\n' * 9)))  # type: ignore[operator]
    with pytest.raises(DataError, match=re.escape(f"{path}: cannot be read: the gzip data are")):
        list(Table((path,)))


def test_a_file_that_unpacks_to_far_too_much_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit is for all members of a file together."""
    monkeypatch.setattr(compressed, "FREE_BYTES", 1 << 16)
    member = zlib.compressobj(9, wbits=31)
    bomb = member.compress(b" " * (1 << 20)) + member.flush()
    for ending in ("jsonl", "json", "csv", "tsv"):
        path = tmp_path / f"train.{ending}.gz"
        path.write_bytes(bomb * 2)
        with pytest.raises(DataError, match=rf"unpacks to more than .* gunzip -k train\.{ending}"):
            list(Table((path,)))
    monkeypatch.undo()
    assert list(Table((tmp_path / "train.jsonl.gz",))) == []  # small files may be as dense


@pytest.mark.parametrize(
    ("name", "command"),
    [("rows.jsonl.zst", "zstd -d rows.jsonl.zst"), ("rows.zip", "unzip rows.zip"),
     ("rows.csv.bz2", "bunzip2 -k rows.csv.bz2"), ("rows.tar.gz", "tar -xf rows.tar.gz"),
     ("rows.parquet.gz", "gunzip -k rows.parquet.gz")],
)  # fmt: skip
@pytest.mark.parametrize("in_folder", [True, False])
def test_other_archives_are_refused_with_the_command_that_unpacks_them(
    tmp_path: Path, name: str, command: str, in_folder: bool
) -> None:
    (tmp_path / name).write_bytes(b"\x28\xb5\x2f\xfd")
    path = tmp_path if in_folder else tmp_path / name
    with pytest.raises(InputError, match=re.escape(f"unpack it first: {command}")):
        check_data(path, load_recipe("classify", [f"data={path}"]))
