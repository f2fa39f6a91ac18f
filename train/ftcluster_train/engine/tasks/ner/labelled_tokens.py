"""Words as tokens: which token of a row has which tag.

A token belongs to the word in which it begins. Standard library only.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from ftcluster_common.data.tagged_words import OUTSIDE, Tagged, parts

CharacterRange = tuple[int, int]  # the first character and the one behind the last


@dataclass(frozen=True)
class Labelled:
    """A token whose tag is learned or predicted.

    Attributes:
        position: of the token, among those of the row's text.
        word: the number of its word; of a text that of the word that the tokenizer has found.
        tag: "" where there is none.
        place: the characters of its word, or of itself where all tokens are labelled.
    """

    position: int
    word: int
    tag: str
    place: CharacterRange


@dataclass(frozen=True)
class LabelledRow:
    """The tokens of a row that have tags.

    Attributes:
        lost: words without a token of their own.
        unfit: spans that begin or end within what gets a tag.
    """

    tokens: list[Labelled]
    lost: int = 0
    unfit: int = 0


def label_tokens(
    row: Tagged, offsets: Sequence[CharacterRange], word_ids: Sequence[int | None], every: bool
) -> LabelledRow:
    """The tokens that have tags: the first of each word, or `every` one.

    As in run_ner, further tokens of a word that begins with B- have I-.

    Args:
        offsets: the characters of the tokens, without special ones.
        word_ids: of a tokenizer, by which a text is divided into words.

    >>> row = Tagged("New York", spans=(("LOC", 0, 8),))
    >>> [(one.tag, one.place) for one in label_tokens(row, [(0, 3), (4, 8)], [0, 1], False).tokens]
    [('B-LOC', (0, 3)), ('I-LOC', (4, 8))]
    """
    begins = _begins(row.text, offsets)
    if row.words:
        return _of_words(row, offsets, begins, every)
    numbered = [number for number, begin in enumerate(begins) if begin is not None]
    units = [
        list(group)
        for _, group in groupby(numbered, lambda number: number if every else word_ids[number])
    ]
    places = [(begins[unit[0]] or 0, offsets[unit[-1]][1]) for unit in units]
    tags, unfit = _tags_of_spans(row, places)
    tokens = [
        Labelled(unit[0], number, tag, place)
        for number, (unit, place, tag) in enumerate(zip(units, places, tags, strict=True))
    ]
    return LabelledRow(tokens, unfit=unfit)


def _begins(text: str, offsets: Sequence[CharacterRange]) -> list[int | None]:
    """Where each token begins, without the spaces that some tokenizers count to it.

    One of a space alone belongs to the word behind it, if there is one.
    """
    places: list[int | None] = []
    for begin, end in offsets:
        part = text[begin:end]
        place = begin + len(part) - len(part.lstrip())
        places.append(None if place == end and not text[end : end + 1].strip() else place)
    return places


def _of_words(
    row: Tagged, offsets: Sequence[CharacterRange], begins: Sequence[int | None], every: bool
) -> LabelledRow:
    starts = [begin for begin, _ in row.words]
    tokens: list[Labelled] = []
    found = set()
    for position, begin in enumerate(begins):
        if begin is None:
            continue
        word = bisect_right(starts, begin) - 1
        if word in found and not every:
            continue
        tag = row.tags[word] if row.tags else ""
        if word in found and tag.startswith("B-"):
            tag = f"I-{parts(tag)[1]}"
        place = (begin, offsets[position][1]) if every else row.words[word]
        tokens.append(Labelled(position, word, tag, place))
        found.add(word)
    return LabelledRow(tokens, lost=len(row.words) - len(found))


def _tags_of_spans(row: Tagged, places: Sequence[CharacterRange]) -> tuple[list[str], int]:
    """The tags of places, in IOB2, and how many spans begin or end within one."""
    tags, unfit = [OUTSIDE] * len(places), 0
    starts = [begin for begin, _ in places]
    edges = {*starts}, {end for _, end in places}
    for kind, begin, end in row.spans:
        unfit += begin not in edges[0] or end not in edges[1]
        first = bisect_left(starts, begin)
        first -= first > 0 and places[first - 1][1] > begin
        prefix = "B"
        for number in range(first, len(places)):
            if starts[number] >= end:
                break
            if tags[number] == OUTSIDE:
                tags[number], prefix = f"{prefix}-{kind}", "I"
    return tags, unfit
