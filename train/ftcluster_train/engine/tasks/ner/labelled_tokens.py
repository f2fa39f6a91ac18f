"""The mapping from tagged words to tokens.

A token belongs to the word in which it begins. Standard library only.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from ftcluster_common.data.tagged_words import OUTSIDE, Tagged, parts

CharacterRange = tuple[int, int]  # index of the first character, and index after the last character


@dataclass(frozen=True)
class Labelled:
    """A token whose tag is a training target or is predicted.

    Attributes:
        position: index of the token among the tokens of the row's text.
        word: index of the token's word. In plain text, the tokenizer determines the words.
        tag: tag of the token; "" if the row has no tags.
        place: character range of the word or, if all tokens are labelled, of the token.
    """

    position: int
    word: int
    tag: str
    place: CharacterRange


@dataclass(frozen=True)
class LabelledRow:
    """The labelled tokens of a row.

    Attributes:
        lost: number of words in which no token begins.
        unfit: number of tagged spans that begin or end inside a labelled word or token.
    """

    tokens: list[Labelled]
    lost: int = 0
    unfit: int = 0


def label_tokens(
    row: Tagged, offsets: Sequence[CharacterRange], word_ids: Sequence[int | None], every: bool
) -> LabelledRow:
    """Return the labelled tokens of a row: the first token of each word, or every token.

    If every token is labelled, a B- tag is given only to the first token of its word; the other
    tokens of the word get the I- tag, as in run_ner.

    Args:
        offsets: character range of each token, without special tokens.
        word_ids: word index of each token according to the tokenizer; used only for plain text.
        every: True to label every token.

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
    """Return the index of each token's first character that is not a space.

    Some tokenizers include leading spaces in a token. A token that consists of spaces belongs to
    the next word, if there is one.
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
    labelled = set()
    for position, begin in enumerate(begins):
        if begin is None:
            continue
        word = bisect_right(starts, begin) - 1
        if word in labelled and not every:
            continue
        tag = row.tags[word] if row.tags else ""
        if word in labelled and tag.startswith("B-"):
            tag = f"I-{parts(tag)[1]}"
        place = (begin, offsets[position][1]) if every else row.words[word]
        tokens.append(Labelled(position, word, tag, place))
        labelled.add(word)
    return LabelledRow(tokens, lost=len(row.words) - len(labelled))


def _tags_of_spans(row: Tagged, places: Sequence[CharacterRange]) -> tuple[list[str], int]:
    """Return each place's IOB2 tag, and the number of spans that begin or end inside a place."""
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
