"""BEIR's folders: a corpus, queries, and judgements which texts belong to which queries."""

import json
from pathlib import Path
from typing import Any

import pytest

from ftcluster_common.data.data_files import DataError, Table, files_of

TITLED = {"_id": "t1", "title": "Rain", "text": "It rains."}


def write(folder: Path, *judgements: str, **files: str) -> Path:
    (folder / "qrels").mkdir(parents=True)
    corpus: list[dict[str, Any]] = [TITLED, {"_id": 2, "text": "Snow"}, {"_id": "t3", "text": ""}]
    queries = [{"_id": "q1", "text": "wet?"}, {"_id": "q2", "text": "cold?", "metadata": {}}]
    for name, rows in (("corpus", corpus), ("queries", queries)):
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    for split, lines in {"test": "\n".join(judgements), **files}.items():
        (folder / f"qrels/{split}.tsv").write_text(f"query-id\tcorpus-id\tscore\n{lines}\n")
    return folder


def test_rows_of_judgements(tmp_path: Path) -> None:
    path = write(tmp_path, "q1\tt1\t2", "q1\t2\t0", "q2\t2\t1", train="q2\tt1\t1")
    found = {split: list(Table(files)) for split, files in files_of(path).items()}
    rain, snow = "Rain It rains.", "Snow"
    assert found == {
        "train": [{"query": "cold?", "positive": rain}],
        "validation": [
            {"query": "wet?", "positive": rain, "negative": [snow]},
            {"query": "cold?", "positive": snow, "negative": []},
        ],
    }
    (tmp_path / "qrels/dev.tsv").write_text("query-id\tcorpus-id\tscore\nq1\t2\t1\n")
    assert [file.name for file in files_of(path)["validation"]] == ["dev.tsv"]
    (tmp_path / "qrels/train.tsv").unlink()
    (tmp_path / "pairs.jsonl").write_text('{"query": "a", "positive": "b"}\n')
    assert [file.name for file in files_of(path)["train"]] == ["pairs.jsonl"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("q9\tt1\t1", "test.tsv:2: queries.jsonl contains no _id q9"),
        ("q1\tt9\t1", "test.tsv:2: corpus.jsonl contains no _id t9"),
        ("q1\tt1\thigh", "test.tsv:2: score must be a whole number, got 'high'"),
    ],
)
def test_judgements_of_what_is_not_there(tmp_path: Path, line: str, said: str) -> None:
    [files] = files_of(write(tmp_path, line)).values()
    [(_, problem)] = Table(files).with_places()
    assert isinstance(problem, DataError)
    assert str(problem).endswith(said)
