"""Conversion of an export to training rows: one answer per text, in columns that tasks recognize.

The rows of all files of a set are read twice. The first pass collects what a single row does not
show: which columns contain answers, whether a row may have several classes, and which texts are
annotated by several rows. Standard library only.
"""

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, Literal

from ftcluster_common.data.columns import LABELS, SPAN_COLUMNS, TEXTS
from ftcluster_common.data.importers.record import LABEL, SPANS, Annotated, Classes, Importer
from ftcluster_common.data.rows import DataError, Places, Row, short

AGAIN = "that annotate the text of another row"
UNLABELLED = "without a class"
SHOWN_TEXT, SHOWN_CHARACTERS = 80, 400  # maximum characters of a text and a row in a note
# names of answer columns that other tasks read
OTHER_ANSWERS = ("answer", "answers", "answer_text", "target", "summary", "completion", "response",
                 "output", "chosen", "rejected", "positive")  # fmt: skip

Kind = Literal["", "spans", "classes", "text"]


@dataclass(frozen=True)
class Skipped:
    """A row of an export without an answer to train on; `fields` contains its texts by column."""

    reason: str
    fields: Row


def _kind_of(answer: Any) -> Kind:
    if isinstance(answer, Classes):
        return "classes"
    if isinstance(answer, list):
        return "spans" if answer else ""
    return "text"


def _digest(value: Any) -> bytes:
    text = json.dumps(value, sort_keys=True, default=str, ensure_ascii=True)
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def _shown(row: Row) -> str:
    """Return a row as JSON for a note; long texts are shortened."""
    cells = {
        name: f"{cell[: SHOWN_TEXT - 3]}..."
        if isinstance(cell, str) and len(cell) > SHOWN_TEXT
        else cell
        for name, cell in row.items()
    }
    text = json.dumps(cells, ensure_ascii=False, default=str)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[: SHOWN_CHARACTERS - 3]}..."


class Survey:
    """A summary of all exports of one format in a set of files.

    Call `add` with each row, then `finish`, and then `outcome` with each row.

    Attributes:
        rows: number of rows with an answer to train on.
        skipped: places of the rows without an answer, by reason.
        disagreeing: places of the rows whose annotators gave different answers.
        sample: first row as a task reads it.
    """

    def __init__(self, importer: Importer) -> None:
        self.importer = importer
        self.rows = 0
        self.skipped: defaultdict[str, Places] = defaultdict(Places)
        self.disagreeing = Places()
        self.unmarked = Places()
        self.ignored: Counter[str] = Counter()
        self.sample: Row = {}
        self._kinds: dict[str, Kind] = {}
        self._several: set[str] = set()
        self._texts: Counter[str] = Counter()
        self._fields: dict[str, None] = {}
        self._best: dict[Hashable, tuple[str, str]] = {}  # rank and place of the row to use
        self._digests: dict[Hashable, bytes] = {}
        self._disputed: set[Hashable] = set()
        self._copies: dict[str, str] = {}

    def read(self, where: str, row: Any) -> Annotated:
        """Read a row with the importer.

        Raises:
            DataError: the row is damaged; the message names its place.
        """
        if not isinstance(row, dict):
            raise DataError(f"{where}: the row must be a JSON object")
        try:
            return self.importer.read(row)
        except DataError as error:
            raise DataError(f"{where}: {self.importer.tool}: {error}") from error
        except (TypeError, ValueError, LookupError, AttributeError, RecursionError) as error:
            raise DataError(
                f"{where}: {self.importer.tool}: the row is damaged: {short(str(error))}"
            ) from error

    def add(self, where: str, row: Any) -> None:
        """Include a row in the survey; damaged rows are ignored, because `outcome` reports them."""
        try:
            record = self.read(where, row)
        except DataError:
            return
        self._fields.update(dict.fromkeys(record.fields))
        self.ignored.update(record.ignored)
        if record.text_field:
            self._texts[record.text_field] += 1
        for answers in record.answers:
            for name, answer in answers.items():
                kind = _kind_of(answer)
                if self._kinds.get(name) in (None, ""):
                    self._kinds[name] = kind
                if isinstance(answer, Classes) and len(answer) > 1:
                    self._several.add(name)
        digests = [_digest(answers) for answers in record.answers]
        if record.key is not None and digests:
            rank = (record.rank, where)
            best = self._best.setdefault(record.key, rank)
            # rows arrive in the order of the file, so the first of several equal ranks is kept
            if record.rank < best[0]:
                self._best[record.key] = rank
            own = _digest([dict(record.fields), record.answers])
            if (
                self._digests.setdefault(record.key, own) != own
                and record.key not in self._disputed
            ):
                self._disputed.add(record.key)
                self.disagreeing.add(where)
        elif len({*digests}) > 1:
            self.disagreeing.add(where)

    def finish(self) -> None:
        """Choose the names of the columns; call this after the last row."""
        spans = [name for name, kind in self._kinds.items() if kind == "spans"]
        if not spans:  # no text has an entity or a class
            spans = [name for name, kind in self._kinds.items() if kind == ""]
        others = [name for name in self._kinds if name not in spans]
        usual = {*LABELS, *SPAN_COLUMNS, *OTHER_ANSWERS}
        if len(spans) == 1 and (spans[0] not in SPAN_COLUMNS or (others and spans[0] in LABELS)):
            self._copies[SPANS] = spans[0]
        if len(others) == 1 and others[0] not in usual:
            self._copies[LABEL] = others[0]
        if len(self._texts) == 1 and (text := next(iter(self._texts))) not in TEXTS[:1]:
            self._copies["text"] = text

    def columns_text(self) -> str:
        """Describe copied columns, and whether a row has one or several classes."""
        parts = [f"{new} is a copy of {old}" for new, old in self._copies.items()]
        for name, kind in self._kinds.items():
            if kind == "classes":
                many = "a list of classes" if name in self._several else "one class"
                parts.append(f"{name} contains {many} in each row")
        return "; ".join(parts)

    def outcome(self, where: str, row: Any) -> Row | Skipped | DataError:
        """Return a row with the usual columns, or the reason why it is not used."""
        try:
            record = self.read(where, row)
        except DataError as error:
            return error
        fields = dict(record.fields)
        for new, old in self._copies.items():
            if old in fields:
                fields[new] = fields[old]
        if record.skipped or not record.answers:
            return Skipped(record.skipped or "without an annotation", fields)
        if record.key is not None and self._best.get(record.key, ("", where))[1] != where:
            return Skipped(AGAIN, fields)
        try:
            answers = self._answers(record)
        except DataError as error:
            return DataError(f"{where}: {self.importer.tool}: {error}")
        classes = [name for name, kind in self._kinds.items() if kind == "classes"]
        if classes and [*self._kinds] == classes and all(answers[name] is None for name in classes):
            return Skipped(UNLABELLED, fields)
        for new, old in self._copies.items():
            if old in answers:
                answers[new] = answers[old]
        if self._copies.get(SPANS) in LABELS:
            del answers[self._copies[SPANS]]
        return {**fields, **answers}

    def _answers(self, record: Annotated) -> dict[str, Any]:
        """Return the chosen answers of a row, with a value for each column of answers.

        Raises:
            DataError: a column contains entities in some rows and classes or texts in others.
        """
        chosen, answers = record.answers[0], {}
        for name, kind in self._kinds.items():
            answer = chosen.get(name, record.fields.get(name))
            if kind == "classes":
                if isinstance(answer, str):
                    answer = Classes([answer] if answer.strip() else [])
                if answer and not isinstance(answer, Classes):
                    raise DataError(
                        f"column {name} is {short(answer)}, but contains classes in other rows"
                    )
                listed = [*(answer or ())]
                answers[name] = listed if name in self._several else listed[0] if listed else None
            elif kind in ("spans", ""):
                if isinstance(answer, str) and not answer.strip():
                    answer = []
                if answer and _kind_of(answer) != "spans":
                    raise DataError(
                        f"column {name} is {short(answer)}, but contains entities in other rows"
                    )
                answers[name] = answer or []
            else:
                answers[name] = answer
        return answers

    def count(self, where: str, outcome: Row | Skipped | DataError) -> None:
        """Count an outcome for the notes."""
        if isinstance(outcome, DataError):
            return
        if isinstance(outcome, Skipped):
            self.skipped[outcome.reason].add(where)
            return
        self.rows += 1
        self.sample = self.sample or outcome
        spans = [name for name, kind in self._kinds.items() if kind == "spans"]
        if spans and not any(outcome.get(name) for name in (*spans, SPANS)):
            self.unmarked.add(where)

    def notes(self, name: str) -> list[str]:
        """Return notes for the user: the format, what is read and skipped, and a sample.

        Args:
            name: name of the file or the set.
        """
        every = self.rows + sum(places.count for places in self.skipped.values())
        head = f"{name} is an export of {self.importer.tool}: {self.rows} of {every} rows are read"
        parts = [f"{self.unmarked.count} of these have no entity"] if self.unmarked.count else []
        parts += [
            f"skipped: {places.count} {reason} ({places})"
            for reason, places in sorted(self.skipped.items())
        ]
        if columns := self.columns_text():
            parts.append(columns)
        if self.ignored:
            parts.append(f"not read: {', '.join(sorted(self.ignored))}")
        notes = ["; ".join([head, *parts])]
        if self.disagreeing.count:
            notes.append(
                f"{name}: annotators DISAGREE about {self.disagreeing.count} of the texts "
                f"({self.disagreeing}): {self.importer.choice}"
            )
        if self.sample:
            notes.append(f"{name}: the first row is read as {_shown(self.sample)}")
        return notes
