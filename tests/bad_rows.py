"""Invalid rows of data for each task, and the message that every reader must print for them."""

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MOST_LINES, MOST_CHARACTERS = 20, 3000  # limits of a message about all rows of a file
ROWS = 60


@dataclass(frozen=True)
class BadRow:
    """An invalid row that is placed among valid rows.

    Attributes:
        recipe: the recipe that would be trained.
        said: the problem of the row, behind its place.
        flat: whether CSV and TSV can have it.
    """

    recipe: str
    good: Mapping[str, Any]
    bad: Mapping[str, Any]
    said: str
    flat: bool = True

    def rows(self, number: int) -> list[Mapping[str, Any]]:
        """Return valid rows with one invalid row; for number 0, all rows are invalid."""
        return [self.bad if number in (0, n) else self.good for n in range(1, ROWS + 1)]


CHAT = [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "So."}]
ANSWERS = {"text": ["me"], "answer_start": [7]}
ASKED = {"question": "Who?", "context": "It was me.", "answers": ANSWERS}
BAD = {
    "no label": BadRow(
        "classify", {"text": "a b", "label": "x"}, {"text": "a b", "label": ""}, "label is empty"
    ),
    "no text": BadRow(
        "classify", {"text": "a b", "label": 1}, {"text": None, "label": 1},
        "column text must be a string, got None", flat=False,
    ),
    "-1": BadRow(
        "classify", {"text": "a b", "label": 1}, {"text": "a b", "label": -1}, "label is -1",
        flat=False,
    ),
    "empty": BadRow(
        "embed", {"query": "a", "positive": "b"}, {"query": "a", "positive": " "},
        "column positive is empty",
    ),
    "no pair": BadRow(
        "embed", {"query": "a", "positive": "b", "label": "true"},
        {"query": "a", "positive": "b", "label": "no"}, "column label is",
    ),
    "too much": BadRow(
        "rerank", {"query": "a", "text": "b", "label": 1}, {"query": "a", "text": "b", "label": 3},
        "label is",
    ),
    "no answer": BadRow(
        "sft", {"messages": CHAT}, {"messages": CHAT[:1]},
        "column messages contains no message with the role assistant", flat=False,
    ),
    "a text that is no conversation": BadRow(
        "sft", {"messages": json.dumps(CHAT)}, {"messages": "y" * 5000},
        "column messages must be a list of messages, got 'yyyyyyyy",
    ),
    "not chosen": BadRow(
        "dpo", {"prompt": "a", "chosen": "b", "rejected": "c"},
        {"prompt": "a", "chosen": "", "rejected": "c"}, "column chosen is empty",
    ),
    "neither liked nor disliked": BadRow(
        "kto", {"prompt": "a", "completion": "b", "label": "up"},
        {"prompt": "a", "completion": "b", "label": "4"}, "column label must be true",
    ),
    "not judged": BadRow(
        "kto", {"prompt": "a", "completion": "b", "label": "up"},
        {"prompt": "a", "completion": "b", "label": ""}, "column label must be true",
    ),
    "a tag too few": BadRow(
        "ner", {"tokens": ["a", "b"], "tags": ["B-X", "I-X"]},
        {"tokens": ["a", "b"], "tags": ["B-X"]}, "2 words in column tokens, but 1", flat=False,
    ),
    "another place": BadRow(
        "squad", ASKED, {**ASKED, "answers": {"text": ["me"], "answer_start": [2]}},
        "the answer 'me' is not at character 2 of the context", flat=False,
    ),
}  # fmt: skip
TEXTS = (".jsonl", ".json", ".csv", ".tsv")


def write(folder: Path, ending: str, rows: Sequence[Mapping[str, Any]]) -> tuple[Path, str]:
    """Write the rows to a file; return the place of its third row as messages name it."""
    path = folder / f"rows{ending}"
    with path.open("w", encoding="utf-8", newline="") as file:
        if ending == ".json":
            json.dump(rows, file)
        elif ending == ".jsonl":
            file.writelines(json.dumps(row) + "\n" for row in rows)
        else:
            quoting = csv.QUOTE_NONE if ending == ".tsv" else csv.QUOTE_MINIMAL
            mark = "\t" if ending == ".tsv" else ","
            writer = csv.DictWriter(
                file, list(rows[0]), delimiter=mark, quoting=quoting, quotechar=None
                if ending == ".tsv" else '"',
            )  # fmt: skip
            writer.writeheader()
            writer.writerows(rows)
    place = {".jsonl": ":3", ".json": ": row 3"}.get(ending, ":4")
    return path, f"{path.name}{place}"


def check_said(message: str, where: str, said: str) -> None:
    """Return True if a message names a row and its problem, and stays short."""
    assert f"{where}: {said}" in message
    assert len(message) < MOST_CHARACTERS
    assert message.count("\n") < MOST_LINES
    assert "Traceback" not in message
