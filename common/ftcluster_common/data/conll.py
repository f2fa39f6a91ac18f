"""Sentences in CoNLL format: one word with its tags on each line, a blank line after each sentence.

Standard library only.
"""

import re
from collections.abc import Iterable, Iterator
from itertools import chain, islice

DOCUMENT = "-DOCSTART-"  # marks the start of a document in CoNLL-2003
TAG = re.compile(r"O|[BIOLUESM]-\S+")
LOOKED_AT = 20  # number of first lines that are checked
# column names by the number of cells; four cells get the names of CoNLL-2003 on the Hub
COLUMNS = {1: ("tokens",), 4: ("tokens", "pos_tags", "chunk_tags", "ner_tags")}

Sentence = dict[str, list[str]]  # words and tags of a sentence, by column


def looks_like_conll(lines: Iterable[str]) -> bool:
    """Return True if each of the first non-blank lines has a word and ends with a tag.

    >>> looks_like_conll(["-DOCSTART- -X- -X- O", "", "EU NNP B-NP B-ORG"])
    True
    >>> looks_like_conll(["text label", "good B-ORG"]), looks_like_conll(["O"])
    (False, False)
    """
    filled = (_cells(line) for line in lines if line.strip())
    first = [*islice((cells for cells in filled if not _is_comment(cells)), LOOKED_AT)]
    return bool(first) and all(len(line) > 1 and TAG.fullmatch(line[-1]) for line in first)


def sentences(lines: Iterable[str]) -> Iterator[tuple[int, Sentence | str]]:
    """Yield each sentence with the number of its first line, or a line's number and its problem.

    The word is in the first cell of a line and its tag in the last one. Tabs separate the cells, or
    spaces in a line without tabs. Lines with -DOCSTART- and comments before a sentence are skipped.

    >>> list(sentences(["EU B-ORG", "rejects O", "", "Peter"]))[0]
    (1, {'tokens': ['EU', 'rejects'], 'ner_tags': ['B-ORG', 'O']})
    >>> list(sentences(["EU B-ORG", "", "Peter"]))[1]
    (3, "1 cell ('Peter'), but the lines before have 2: first the word, last its tag")
    """
    words: list[list[str]] = []
    begin = width = 0
    for number, line in enumerate(chain(lines, [""]), start=1):
        cells = _cells(line)
        if not line.strip() or cells[0] == DOCUMENT:
            if words:
                yield begin, _sentence(words)
            words = []
        elif not words and _is_comment(cells):
            continue
        elif width and len(cells) != width:
            have = f"{len(cells)} cell{'s' * (len(cells) > 1)} ({line.strip()[:40]!r})"
            yield number, f"{have}, but the lines before have {width}: first the word, last its tag"
        else:
            begin, width = begin if words else number, len(cells)
            words.append(cells)


def _is_comment(cells: list[str]) -> bool:
    return cells[0].startswith("#") and not TAG.fullmatch(cells[-1])


def _cells(line: str) -> list[str]:
    return line.rstrip("\r\n").split("\t") if "\t" in line else line.split()


def _sentence(words: list[list[str]]) -> Sentence:
    width = len(words[0])
    others = (f"column_{number}" for number in range(2, width))
    names = COLUMNS.get(width, ("tokens", *others, "ner_tags"))
    return {name: list(cells) for name, cells in zip(names, zip(*words, strict=True), strict=True)}
