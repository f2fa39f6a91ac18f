"""Readers keep few rows in memory, so that data may be larger than memory."""

import json
import tracemalloc
from pathlib import Path

import pytest

from ftcluster_common.data import data_files
from ftcluster_common.data.data_files import DataError, Table, files_of

ROWS = 5000
TEXT = "word " * 200  # 1 kB


def peak_of_reading(path: Path) -> int:
    """Return the peak of Python's memory while all rows of a file are read."""
    tracemalloc.start()
    try:
        assert sum(1 for _ in Table((path,))) == ROWS
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("ending", ["jsonl", "json", "csv"])
def test_few_rows_are_in_memory(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"train.{ending}"
    rows = [json.dumps({"text": f"{TEXT}{number}", "label": 1}) for number in range(ROWS)]
    if ending == "csv":
        rows = ["text,label", *(f"{TEXT}{number},1" for number in range(ROWS))]
    path.write_text("\n".join(rows))
    assert path.stat().st_size > ROWS * len(TEXT)
    assert peak_of_reading(path) < ROWS * len(TEXT) / 2


def test_json_lines_may_begin_with_blank_lines_and_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "train.json"
    path.write_text('\n\n{"text": "a"}\n\n{"text": "b"}\n', encoding="utf-8-sig")
    assert [*Table((path,)).with_places()] == [
        (f"{path}:3", {"text": "a"}),
        (f"{path}:5", {"text": "b"}),
    ]


def test_a_missing_quote_does_not_read_the_rest_of_a_large_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_files, "MOST_CHARACTERS", 1 << 16)
    path = tmp_path / "train.csv"
    rows = [f'"{TEXT}",1' for _ in range(ROWS)]
    rows[1] = f'"{TEXT},1'
    path.write_text("\n".join(["text,label", *rows]))
    with pytest.raises(DataError, match=r"train\.csv:\d+: .*the row begins at line 3"):
        [*Table((path,))]


def test_a_training_keeps_only_the_judged_texts_of_a_corpus(tmp_path: Path) -> None:
    (tmp_path / "qrels").mkdir()
    (tmp_path / "qrels" / "train.tsv").write_text("query-id\tcorpus-id\tscore\nq1\td7\t1\n")
    (tmp_path / "queries.jsonl").write_text('{"_id": "q1", "text": "word?"}\n')
    with (tmp_path / "corpus.jsonl").open("w") as corpus:
        for number in range(ROWS):
            corpus.write(json.dumps({"_id": f"d{number}", "text": f"{TEXT}{number}"}) + "\n")
    table = Table(files_of(tmp_path)["train"])
    tracemalloc.start()
    try:
        assert [*table] == [{"query": "word?", "positive": f"{TEXT}7"}]
        assert tracemalloc.get_traced_memory()[1] < ROWS * len(TEXT) / 10
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("judged", [1, 200])
def test_an_evaluation_reads_a_corpus_without_keeping_it(tmp_path: Path, judged: int) -> None:
    (tmp_path / "qrels").mkdir()
    pairs = [(f"q{number}", f"d{number * 7}") for number in range(judged)]
    lines = ["query-id\tcorpus-id\tscore", *(f"{query}\t{text}\t1" for query, text in pairs)]
    (tmp_path / "qrels" / "dev.tsv").write_text("\n".join(lines) + "\n")
    queries = [json.dumps({"_id": query, "text": f"{query}?"}) for query, _ in pairs]
    (tmp_path / "queries.jsonl").write_text("\n".join(queries))
    with (tmp_path / "corpus.jsonl").open("w") as corpus:
        for number in range(ROWS):
            corpus.write(json.dumps({"_id": f"d{number}", "text": f"{TEXT}{number}"}) + "\n")
    table = Table(files_of(tmp_path)["validation"])
    tracemalloc.start()
    try:
        found: set[str] = set()
        for row in table:
            texts = [row["positive"], *row["negative"]]
            found.update(text.removeprefix(TEXT) for text in texts)
            assert row["query"] != "q0?" or row["positive"] not in row["negative"]
        # the first rows, with up to 100 texts each, are kept to detect their format
        assert tracemalloc.get_traced_memory()[1] < ROWS * len(TEXT) * 0.75
    finally:
        tracemalloc.stop()
    assert found == {str(number) for number in range(ROWS)}
