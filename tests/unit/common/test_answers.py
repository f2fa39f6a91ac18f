"""Answers with and without positions, as people and tools write them for question answering."""

from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ftcluster_common.data.answers import AnswerColumns, UnplacedAnswerError, read_answers
from ftcluster_common.data.rows import DataError

CONTEXT = "Ada wrote the notes in 1843. In 1852 Ada, the author of the notes, died."
COLUMNS = AnswerColumns("question", "context", "answer", "answer_start")


def read(answer: Any, start: Any = None, first: bool = False) -> dict[str, list[Any]]:
    row = {"question": "?", "context": CONTEXT, "answer": answer, "answer_start": start}
    return read_answers(row, COLUMNS, first)


@pytest.mark.parametrize(
    "answer",
    [
        "1843",
        " 1843 ",
        ["1843"],
        {"text": ["1843"], "answer_start": [23]},
        {"text": "1843", "answer_start": 23},
        {"text": ["1843"]},
        [{"text": "1843", "answer_start": 23}],
        [{"start": 23, "end": 27, "label": "YEAR"}],
        '{"text": ["1843"], "answer_start": [23]}',
        "{'text': ['1843'], 'answer_start': [23]}",
        '["1843"]',
    ],
)
def test_forms_of_the_same_answer(answer: Any) -> None:
    assert read(answer) == {"text": ["1843"], "answer_start": [23]}


@pytest.mark.parametrize("nothing", ["", " ", None, float("nan"), [], {"text": []}, "[]"])
def test_a_question_without_an_answer(nothing: Any) -> None:
    assert read(nothing) == {"text": [], "answer_start": []}


@pytest.mark.parametrize("start", [37, "37", None, ""])
def test_a_position_in_another_column(start: Any) -> None:
    if start in (None, ""):
        with pytest.raises(
            UnplacedAnswerError, match=r"'Ada' occurs 2 times .* characters 0, 37: add"
        ):
            read("Ada", start)
        assert read("Ada", start, first=True)["answer_start"] == [0]
    else:
        assert read("Ada", start)["answer_start"] == [37]
    with pytest.raises(DataError, match="answer 'Ada' is not at character 3 of the context"):
        read("Ada", 3)


def test_a_place_within_a_word_is_no_place_if_there_is_a_word() -> None:
    context = "An art party; party of one."
    row = {"question": "?", "context": context, "answer": "art"}
    assert read_answers(row, COLUMNS)["answer_start"] == [3]
    with pytest.raises(UnplacedAnswerError, match="'party' occurs 2 times"):
        read_answers({**row, "answer": "party"}, COLUMNS)
    with pytest.raises(UnplacedAnswerError, match="'ar' occurs 3 times"):  # only within words
        read_answers({**row, "answer": "ar"}, COLUMNS)


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ("1851", "does not contain the answer '1851': correct the answer"),
        (
            "ADA, THE AUTHOR",
            "does not contain the answer 'ADA, THE AUTHOR', only 'Ada, the author': correct",
        ),
        (["1843", ""], "column answer contains an empty answer"),
        (3, "must be a string, or an object with text and answer_start, got 3"),
        ([3], "an answer must be a string, or an object with text and answer_start, got 3"),
        ({"start": 2}, "must be an object with text and answer_start"),
        ({"text": ["a"], "answer_start": []}, "must be lists of the same length"),
        ([{"start": 70, "end": 99}], "is outside the context"),
    ],
)
def test_what_cannot_be_an_answer_has_its_reason(answer: Any, problem: str) -> None:
    with pytest.raises(DataError) as error:
        read(answer)
    assert problem in str(error.value)


@given(st.text("ab \n", min_size=1, max_size=30), st.data())
def test_a_searched_answer_is_where_the_context_has_it(context: str, data: Any) -> None:
    start = data.draw(st.integers(0, len(context) - 1))
    text = context[start : data.draw(st.integers(start + 1, len(context)))].strip()
    assume(text)
    row = {"question": "?", "context": context, "answer": text}
    places = [at for at in range(len(context)) if context.startswith(text, at)]
    try:
        [found] = read_answers(row, COLUMNS)["answer_start"]
    except UnplacedAnswerError:
        assert len(places) > 1
        return
    assert found in places
