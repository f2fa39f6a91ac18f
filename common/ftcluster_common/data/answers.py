"""Reads the answers to a question and their positions in the context. Standard library only.

A cell may contain SQuAD's object of two lists, a list of objects with text and answer_start,
entities of an annotation tool, or strings. Strings have no positions, so they are searched for in
the context.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from ftcluster_common.data.cells import read_cell
from ftcluster_common.data.rows import DataError, Row, short

QUESTIONS = ("question", "query")
CONTEXTS = ("context", "passage", "paragraph", "text", "document")
ANSWERS = ("answers", "answer", "answer_text", "label", "spans", "entities", "labels")
START = "answer_start"
SHOWN = 4  # maximum number of positions listed in a message

Cause = Literal["repeated", "missing"]


class AnswerColumns(NamedTuple):
    """The columns with question, context and answers; unused columns are "".

    Attributes:
        start: column with the position of the answer if `answers` contains plain strings.
    """

    question: str
    context: str
    answers: str = ""
    start: str = ""


class UnplacedAnswerError(DataError):
    """An answer without a position that occurs several times in the context, or not at all.

    Attributes:
        cause: `repeated` if the answer occurs several times, `missing` if it does not occur.
    """

    def __init__(self, cause: Cause, message: str) -> None:
        super().__init__(message)
        self.cause = cause


def read_answers(row: Row, columns: AnswerColumns, first: bool = False) -> dict[str, list[Any]]:
    """Return the answers of a row in SQuAD's format: the lists `text` and `answer_start`.

    The context of the row must be a string.

    Args:
        first: True to use the first place if an answer occurs several times in the context.

    Raises:
        UnplacedAnswerError: the position of an answer cannot be found.
        DataError: the cell has an unsupported form, or the context does not contain an answer at
            the position given for it.

    >>> columns = AnswerColumns("question", "context", "answer")
    >>> read_answers({"question": "Who?", "context": "Ada did.", "answer": "Ada"}, columns)
    {'text': ['Ada'], 'answer_start': [0]}
    """
    context, column = row[columns.context], columns.answers
    cell = read_cell(row[column])
    if isinstance(cell, float) and cell != cell:  # NaN of pandas
        cell = None
    if isinstance(cell, Mapping):
        pairs = _of_object(cell, column)
    elif isinstance(cell, list):
        pairs = [_of_item(item, context, column) for item in cell]
    elif isinstance(cell, str) or cell is None:
        start = row.get(columns.start)
        pairs = [(cell, _number(start))] if cell and cell.strip() else []
    else:
        raise DataError(
            f"column {column} must be a string, or an object with text and {START}, got "
            f"{short(cell)}"
        )
    placed = [_placed(text, start, context, column, first) for text, start in pairs]
    return {"text": [text for text, _ in placed], START: [start for _, start in placed]}


def _number(start: Any) -> Any:
    """Return a position as a number if a string contains it; None if the cell is empty."""
    text = str(start).strip()
    if start is None or text in ("", "nan", "None"):
        return None
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 12 else start


def _of_object(cell: Row, column: str) -> list[tuple[Any, Any]]:
    """Return the answers and their start positions from an object in SQuAD's format."""
    if "text" not in cell:
        raise DataError(
            f"column {column} must be an object with text and {START}, got {short(cell)}"
        )
    texts, starts = cell["text"], cell.get(START)
    if isinstance(texts, str):
        texts, starts = [texts], starts if isinstance(starts, list | None) else [starts]
    if starts is None and isinstance(texts, list):
        starts = [None] * len(texts)
    if not isinstance(texts, list) or not isinstance(starts, list) or len(texts) != len(starts):
        raise DataError(f"column {column}: text and {START} must be lists of the same length")
    return [*zip(texts, starts, strict=True)]


def _of_item(item: Any, context: str, column: str) -> tuple[Any, Any]:
    """Return the text and the position of an answer in a list."""
    if isinstance(item, str):
        return item, None
    if isinstance(item, Mapping) and "text" in item:
        return item["text"], item.get(START, item.get("start"))
    if isinstance(item, Mapping) and {"start", "end"} <= item.keys():
        start, end = item["start"], item["end"]
        if not isinstance(start, int) or not isinstance(end, int):
            raise DataError(
                f"column {column}: start and end must be whole numbers, got {short(item)}"
            )
        if 0 <= start < end <= len(context):
            return context[start:end], start
        raise DataError(f"column {column}: the answer {short(item)} is outside the context")
    raise DataError(
        f"column {column}: an answer must be a string, or an object with text and {START}, got "
        f"{short(item)}"
    )


def _placed(text: Any, start: Any, context: str, column: str, first: bool) -> tuple[str, int]:
    """Check an answer and its position, and return both.

    Raises:
        DataError: the context does not contain the answer at the given position. Without a
            position: the answer does not occur exactly once.
    """
    if start is None and isinstance(text, str):
        return _searched(text.strip(), context, column, first)
    if not isinstance(text, str) or not isinstance(start, int) or start < 0:
        raise DataError(
            f"column {column}: an answer must be a string, and its position a whole number from 0, "
            f"got {short(text)} at {short(start)}"
        )
    actual = context[start : start + len(text)]
    if actual != text:
        raise DataError(
            f"the answer {short(text)} is not at character {start} of the context, which contains "
            f"{short(actual)} there"
        )
    return text, start


def _searched(text: str, context: str, column: str, first: bool) -> tuple[str, int]:
    """Search the context for an answer, and return the answer with its position.

    If the answer occurs exactly once as a whole word, the position of that word is used.
    """
    if not text:
        raise DataError(
            f"column {column} contains an empty answer; if a question has no answer, use an empty "
            "list"
        )
    places = occurrences(text, context)
    whole_words = [place for place in places if _is_word(context, place, place + len(text))]
    if len(places) == 1 or len(whole_words) == 1 or (places and first):
        return text, whole_words[0] if whole_words else places[0]
    if not places:
        like = context.lower().find(text.lower())
        hint = f", only {short(context[like : like + len(text)])}" if like >= 0 else ""
        raise UnplacedAnswerError(
            "missing",
            f"the context does not contain the answer {short(text)}{hint}: correct the answer, or "
            "skip such rows with missing_answers=skip",
        )
    shown = ", ".join(map(str, places[:SHOWN])) + ", ..." * (len(places) > SHOWN)
    raise UnplacedAnswerError(
        "repeated",
        f"the answer {short(text)} occurs {len(places)} times in the context, at characters "
        f"{shown}: add its position as {START}, or set repeated_answers=first or "
        "repeated_answers=skip",
    )


def occurrences(text: str, context: str) -> Sequence[int]:
    """Return all positions at which `text` occurs in `context`, including overlapping ones.

    >>> occurrences("aa", "aaa b aa")
    [0, 1, 6]
    """
    places, place = [], context.find(text)
    while place >= 0:
        places.append(place)
        place = context.find(text, place + 1)
    return places


def _is_word(context: str, start: int, end: int) -> bool:
    """Return True if there are word boundaries at both `start` and `end` of the context."""
    before = context[start - 1 : start] if start else ""
    return not (
        (before.isalnum() and context[start].isalnum())
        or (context[end : end + 1].isalnum() and context[end - 1].isalnum())
    )
