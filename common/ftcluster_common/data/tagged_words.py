"""Reads rows of words with tags for token classification, and converts between tagging schemes.

An entity is a run of words of one type. IOB2 tags the first word of an entity B- and its other
words I-. IOB1 uses B- only if an entity directly follows an entity of the same type. IOBES also has
E- for the last word of an entity, and S- for an entity of a single word. BILOU and BMES are read as
IOBES. Tags without such prefixes are plain tags, such as parts of speech. Standard library only.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, NamedTuple

from ftcluster_common.data.cells import read_cell
from ftcluster_common.data.rows import DataError, Row, found_columns, short

OUTSIDE = "O"
PREFIXED = re.compile(r"([BILOUESM])-(.+)")
AS_IOBES = {"L": "E", "U": "S", "M": "I"}

Scheme = Literal["", "plain", "IOB1", "IOB2", "IOBES"]
Entity = tuple[str, int, int]  # type, first word or character, end (exclusive)


class TaggedColumns(NamedTuple):
    """The columns of words and their tags, or of a text and its spans; unused columns are ""."""

    tokens: str
    text: str
    label: str


@dataclass(frozen=True)
class Tagged:
    """The words and tags, or the text and spans, of a row.

    Attributes:
        text: the text; words are joined by spaces.
        words: character range of each word; () for a text, which the tokenizer splits.
        tags: tag of each word; () if there are none.
        spans: entities of a text as character ranges, in order.
    """

    text: str
    words: tuple[tuple[int, int], ...] = ()
    tags: tuple[str, ...] = ()
    spans: tuple[Entity, ...] = ()


def read_tagged(row: Row, columns: TaggedColumns, names: Sequence[str] = ()) -> Tagged:
    """Return the words or the text of a row, with its tags or spans.

    Args:
        names: tag names by number, for tags that are numbers.

    Raises:
        DataError: the row is invalid; the message names the column.

    >>> columns = TaggedColumns("tokens", "", "tags")
    >>> read_tagged({"tokens": ["New", "York"], "tags": ["B-LOC", "L-LOC"]}, columns).tags
    ('B-LOC', 'E-LOC')
    """
    for name in filter(None, columns):
        if name not in row:
            raise DataError(f"no column {name}; {found_columns(row)}")
    if columns.text:
        text = row[columns.text]
        if not isinstance(text, str):
            raise DataError(f"column {columns.text} must be a string, got {short(text)}")
        return Tagged(
            text, spans=_spans(read_cell(row[columns.label]), text) if columns.label else ()
        )
    words, tags = (read_cell(row[name]) if name else [] for name in (columns.tokens, columns.label))
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise DataError(f"column {columns.tokens} must be a list of words, got {short(words)}")
    if not isinstance(tags, list):
        raise DataError(f"column {columns.label} must be a list of tags, got {short(tags)}")
    if columns.label and len(tags) != len(words):
        raise DataError(
            f"{len(words)} words in column {columns.tokens}, but {len(tags)} tags in column "
            f"{columns.label}"
        )
    begin, places = 0, []
    for word in words:
        places.append((begin, begin + len(word)))
        begin += len(word) + 1
    return Tagged(" ".join(words), tuple(places), tuple(_tag(tag, names) for tag in tags))


def _tag(tag: Any, names: Sequence[str]) -> str:
    if isinstance(tag, int) and not isinstance(tag, bool):
        if not names:
            raise DataError(
                f"the tag {short(tag)} is a number: set the names of all tags in order, such as "
                "tag_names=O,B-PER,I-PER"
            )
        if not 0 <= tag < len(names):
            raise DataError(
                f"the tag {short(tag)} has no name: tag_names lists only {len(names)} names"
            )
        tag = names[tag]
    if not isinstance(tag, str) or not tag.strip():
        raise DataError(f"a tag must be a non-empty string or a number, got {short(tag)}")
    return plain_tag(tag)


def plain_tag(tag: str) -> str:
    """Return a tag in the notation of IOB and IOBES.

    >>> plain_tag("U-PER"), plain_tag("o"), plain_tag("NN")
    ('S-PER', 'o', 'NN')
    """
    match = PREFIXED.fullmatch(tag.strip())
    return f"{AS_IOBES.get(match[1], match[1])}-{match[2]}" if match else tag.strip()


def _spans(cell: Any, text: str) -> tuple[Entity, ...]:
    """Return a cell's spans: objects with start, end and label, or lists of these three values.

    Spans in exports of doccano have start_offset and end_offset; spans in exports of Label Studio
    have a list of labels.
    """
    if not isinstance(cell, list):
        raise DataError(
            f"spans must be a list of objects with start, end and label, got {short(cell)}"
        )
    spans: list[Entity] = []
    for span in cell:
        fields: list[Any]
        if isinstance(span, Mapping):
            labels = span.get("labels")
            only = labels[0] if isinstance(labels, list) and len(labels) == 1 else None
            fields = [
                span.get("start", span.get("start_offset")),
                span.get("end", span.get("end_offset")),
                span.get("label", only),
            ]
        else:
            fields = span if isinstance(span, list) and len(span) == 3 else [None] * 3
        start, end, label = fields
        if not _is_place(start) or not _is_place(end) or not isinstance(label, str) or not label:
            raise DataError(
                f"the span {short(span)} needs whole numbers as start and end, and one string as "
                "label"
            )
        if not start < end <= len(text) or not text[start:end].strip():
            raise DataError(f"the span {short(span)} is outside the text of {len(text)} characters")
        part = text[start:end]
        start, end = start + len(part) - len(part.lstrip()), end - len(part) + len(part.rstrip())
        spans.append((label.strip(), start, end))
    spans.sort(key=lambda span: span[1])
    for (_, _, end), (label, start, _) in pairwise(spans):
        if start < end:
            raise DataError(f"the span of {label} at {start} begins within another span")
    return tuple(spans)


def _is_place(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def parts(tag: str) -> tuple[str, str]:
    """Return a tag's prefix and type; a plain tag gets the prefix `I`, and O has no type.

    >>> parts("B-PER"), parts("O"), parts("NN")
    (('B', 'PER'), ('O', ''), ('I', 'NN'))
    """
    if tag == OUTSIDE:
        return OUTSIDE, ""
    match = PREFIXED.fullmatch(tag)
    return (match[1], match[2]) if match else ("I", tag)


def entities(tags: Iterable[str]) -> list[Entity]:
    """Return the entities of a row as conlleval does, which also accepts invalid tag sequences.

    >>> entities(["I-PER", "O", "I-LOC", "B-LOC"])
    [('PER', 0, 1), ('LOC', 2, 3), ('LOC', 3, 4)]
    """
    spans: list[Entity] = []
    last, last_kind, begin = OUTSIDE, "", 0
    number = -1
    for number, (prefix, kind) in enumerate(map(parts, tags)):
        if last != OUTSIDE and (last in "ES" or prefix in "BSO" or kind != last_kind):
            spans.append((last_kind, begin, number))
        if prefix in "BS" or (prefix in "IE" and (last in "OES" or kind != last_kind)):
            begin = number
        last, last_kind = prefix, kind
    return [*spans, (last_kind, begin, number + 1)] if last != OUTSIDE else spans


def whole_entities(tags: Iterable[str]) -> list[Entity]:
    """Return the entities of a row with valid IOBES tags: S-, or B-, any number of I-, and E-.

    >>> whole_entities(["B-PER", "I-PER", "S-LOC", "B-LOC", "E-LOC"])
    [('LOC', 2, 3), ('LOC', 3, 5)]
    """
    spans: list[Entity] = []
    begin, open_kind = 0, ""
    for number, (prefix, kind) in enumerate(map(parts, tags)):
        if prefix in "BS":
            begin, open_kind = number, kind
        elif prefix not in "IE" or kind != open_kind:
            open_kind = ""
        if prefix in "ES" and open_kind:
            spans.append((kind, begin, number + 1))
            open_kind = ""
    return spans


def tags_of(found: Iterable[Entity], count: int, scheme: Scheme) -> list[str]:
    """Return the tags of `count` words with these entities, in IOB1, IOB2 or IOBES.

    >>> tags_of([("A", 0, 3), ("B", 3, 4)], 5, "IOBES")
    ['B-A', 'I-A', 'E-A', 'S-B', 'O']
    >>> tags_of([("A", 0, 2), ("A", 2, 3), ("B", 3, 4)], 4, "IOB1")
    ['I-A', 'I-A', 'B-A', 'I-B']
    """
    tags = [OUTSIDE] * count
    before: tuple[str, int] = ("", -1)
    for kind, begin, end in found:
        first = "I" if scheme == "IOB1" and before != (kind, begin) else "B"
        before = (kind, end)
        tags[begin:end] = [f"{first}-{kind}", *[f"I-{kind}"] * (end - begin - 1)]
        if scheme == "IOBES":
            tags[end - 1] = f"{'E' if end - begin > 1 else 'S'}-{kind}"
    return tags


def names_of_tags(tags: Iterable[str], scheme: Scheme) -> list[str]:
    """Return the tags of a model: all tags of each type, even tags that are not in the data.

    >>> names_of_tags(["I-B", "B-A"], "IOB2"), names_of_tags(["VB", "NN"], "plain")
    (['O', 'B-A', 'I-A', 'B-B', 'I-B'], ['NN', 'VB'])
    """
    if scheme == "plain":
        return sorted(set(tags))
    kinds = sorted({kind for _, kind in map(parts, tags) if kind})
    prefixes = "BIES" if scheme == "IOBES" else "BI"
    return [OUTSIDE, *(f"{prefix}-{kind}" for kind in kinds for prefix in prefixes)]


def scheme_of(names: Iterable[str]) -> Scheme:
    """Return the tagging scheme of a model's tags; it is IOB1 if a type has I- but no B-.

    >>> scheme_of(["O", "B-A", "I-A"]), scheme_of(["O", "I-A"]), scheme_of(["O", "S-A"])
    ('IOB2', 'IOB1', 'IOBES')
    """
    named = {name for name in names if name != OUTSIDE}
    if not all(map(PREFIXED.fullmatch, named)):
        return "plain"
    if any(name[0] in "ES" for name in named):
        return "IOBES"
    return "IOB2" if all(f"B-{kind}" in named for _, kind in map(parts, named)) else "IOB1"


class TagCheck:
    """Detects the tagging scheme row by row, and tags that violate it.

    Attributes:
        scheme: the detected scheme; "" until a row has an entity.
    """

    def __init__(self) -> None:
        self.scheme: Scheme = ""
        self._example = ""

    def problem(self, tags: Sequence[str], words: Callable[[int], str]) -> str:
        """Return the problem of a row, or "".

        Args:
            words: function that returns the word at an index.
        """
        prefixed = [tag for tag in tags if tag != OUTSIDE and PREFIXED.fullmatch(tag)]
        if not prefixed:
            scheme: Scheme = "plain" if any(tag != OUTSIDE for tag in tags) else ""
            return self._same(scheme, tags, words, 0) if scheme else ""
        if mixed := [tag for tag in tags if tag != OUTSIDE and not PREFIXED.fullmatch(tag)]:
            return f"tag {mixed[0]} has no prefix such as B- or I-, but tag {prefixed[0]} has one"
        if any(tag[0] in "ES" for tag in prefixed):
            wrong = next(_breaks_of_iobes(tags), None)
            if wrong is not None:
                return _said(tags, words, wrong, "which IOBES (BILOU) does not allow there")
            return self._same("IOBES", tags, words, 0)
        before = (OUTSIDE, "")
        for number, (prefix, kind) in enumerate(map(parts, tags)):
            continues = before[0] in "BI" and before[1] == kind
            if prefix != OUTSIDE and not continues:
                scheme = "IOB1" if prefix == "I" else "IOB2"
                if problem := self._same(scheme, tags, words, number):
                    return problem
            before = (prefix, kind)
        return ""

    def _same(
        self, found: Scheme, tags: Sequence[str], words: Callable[[int], str], number: int
    ) -> str:
        self._example = self._example or f"{tags[number]} of {short(words(number))}"
        self.scheme = self.scheme or found
        if found == self.scheme:
            return ""
        what = f"which is {found}, but earlier rows use {self.scheme} ({self._example})"
        return _said(tags, words, number, what) + "; to repair such tags, set repair_tags=true"


def _said(tags: Sequence[str], words: Callable[[int], str], number: int, what: str) -> str:
    return f"word {number + 1}, {short(words(number))}, has the tag {tags[number]}, {what}"


def _breaks_of_iobes(tags: Sequence[str]) -> Iterator[int]:
    before = (OUTSIDE, "")
    for number, (prefix, kind) in enumerate([*map(parts, tags), (OUTSIDE, "")]):
        is_open = before[0] in "BI"
        if (prefix in "IE") != is_open or (is_open and kind != before[1]):
            yield min(number, len(tags) - 1)
        before = (prefix, kind)
