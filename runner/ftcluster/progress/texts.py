"""Formats generated texts, with their sources and references, as lines for a terminal."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

HEAD = ("source", "reference", "written")
MOST_CHARACTERS = 300  # maximum length of a shown text in characters

Texts = Mapping[str, Sequence[Sequence[str]]]  # entries with the fields of HEAD, by data set


def written_texts(result: Mapping[str, Any], evaluations: Sequence[Mapping[str, Any]]) -> Texts:
    """Return the generated texts of the result; without them, those of the last evaluation."""
    last = evaluations[-1] if evaluations else {}
    texts: Texts = result.get("texts") or last.get("texts") or {}
    return texts


def text_lines(texts: Texts) -> Iterator[str]:
    """Yield a heading for each data set, and a line for each text.

    >>> list(text_lines({"validation": [["a long\\ntext", "a text", "text"]]}))
    ['validation:', '  source: a long text', '  reference: a text', '  written: text']
    """
    for name, rows in texts.items():
        yield f"{name}:"
        for row in rows:
            yield from (
                f"  {what}: {_shortened(text)}" for what, text in zip(HEAD, row, strict=True)
            )


def _shortened(text: str) -> str:
    """Return a text as one line of limited length."""
    line = " ".join(text.split())
    return line if len(line) <= MOST_CHARACTERS else f"{line[: MOST_CHARACTERS - 4]} ..."
