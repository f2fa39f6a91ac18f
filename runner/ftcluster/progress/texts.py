"""What a model has written of some sources, beside the references, as lines for a terminal."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

HEAD = ("source", "reference", "written")
MOST_CHARACTERS = 300  # of a text

Texts = Mapping[str, Sequence[Sequence[str]]]  # by the set; each as HEAD says


def written_texts(result: Mapping[str, Any], evaluations: Sequence[Mapping[str, Any]]) -> Texts:
    """Those of an event `result`, or else of the last evaluation; {} where none are written."""
    last = evaluations[-1] if evaluations else {}
    found: Texts = result.get("texts") or last.get("texts") or {}
    return found


def text_lines(texts: Texts) -> Iterator[str]:
    """A line for each text.

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
    """A text in one line."""
    line = " ".join(text.split())
    return line if len(line) <= MOST_CHARACTERS else f"{line[: MOST_CHARACTERS - 4]} ..."
