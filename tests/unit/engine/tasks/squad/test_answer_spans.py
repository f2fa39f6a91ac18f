"""Answers as spans, with words as tokens and windows of words as features."""

import re

import pytest

from ftcluster_train.engine.tasks.squad.answer_spans import (
    AnswerSpan,
    FeatureAnswer,
    best_span,
    choose_answers,
    tokens_of_answer,
)

CONTEXT = "In October 1973 the oil crisis began; it ended in March 1974."
WORDS = [match.span() for match in re.finditer(r"\w+", CONTEXT)]
FIRST = 5  # the context comes after [CLS], two words of a question, [SEP] ...


def windows(size: int, shared: int) -> list[list[tuple[int, int]]]:
    step = size - shared
    return [WORDS[i : i + size] for i in range(0, len(WORDS) - shared, step)]


def place(answer: str) -> tuple[int, int]:
    begin = CONTEXT.index(answer)
    return begin, begin + len(answer)


@pytest.mark.parametrize("answer", ["October 1973", "In", "1974", "the oil crisis began"])
def test_an_answer_goes_to_tokens_and_back(answer: str) -> None:
    begin, end = place(answer)
    found = [(w, tokens_of_answer(w, FIRST, begin, end)) for w in windows(6, 3)]
    there = [(w, tokens) for w, tokens in found if tokens]
    assert there, "no feature has the whole answer"
    for window, (start, stop) in there:
        assert CONTEXT[window[start - FIRST][0] : window[stop - FIRST][1]] == answer


def test_a_feature_with_a_part_of_the_answer_does_not_have_it() -> None:
    window = WORDS[:2]  # In October
    assert tokens_of_answer(window, FIRST, *place("October 1973")) is None
    assert tokens_of_answer(WORDS[2:], FIRST, *place("October 1973")) is None
    assert tokens_of_answer([], 0, 0, 3) is None
    # an answer that begins or ends within a word
    begin, end = place("ctober 19")
    assert tokens_of_answer(WORDS, FIRST, begin, end) == (FIRST + 1, FIRST + 2)


def test_the_best_span_ends_after_its_start_and_is_not_too_long() -> None:
    starts = [0.0, 9.0, 1.0, 5.0]
    ends = [8.0, 0.0, 0.0, 7.0]
    offsets = WORDS[:4]
    best = best_span(starts, ends, offsets, 20, 30)
    assert best == AnswerSpan(16.0, WORDS[1][0], WORDS[3][1])
    short = best_span(starts, ends, offsets, 20, 2)
    assert short == AnswerSpan(12.0, WORDS[3][0], WORDS[3][1])
    assert best_span(starts, ends, offsets, 1, 2) is None  # the best start has only this end
    assert best_span([], [], [], 20, 30) is None


def features_of(scores: list[tuple[int, float, AnswerSpan | None]]) -> list[FeatureAnswer]:
    return [FeatureAnswer(example, null, span) for example, null, span in scores]


def test_the_best_span_of_all_features_of_a_context_is_the_answer() -> None:
    one, other = AnswerSpan(3.0, *place("October 1973")), AnswerSpan(7.0, *place("March 1974"))
    found = features_of([(0, 9.0, one), (0, 9.0, other), (1, 0.0, None)])
    assert choose_answers(found, [CONTEXT, CONTEXT], None) == ["March 1974", ""]
    assert choose_answers(found[::-1], [CONTEXT, CONTEXT], None) == ["March 1974", ""]
    # no answer if every feature says so
    span = AnswerSpan(3.0, *place("1974"))
    sure, unsure = features_of([(0, 5.0, span)]), features_of([(0, 5.0, span), (0, 1.0, None)])
    assert choose_answers(sure, [CONTEXT], None) == ["1974"]
    assert choose_answers(sure, [CONTEXT], 0.0) == [""]
    assert choose_answers(sure, [CONTEXT], 2.5) == ["1974"]
    assert choose_answers(unsure, [CONTEXT], 0.0) == ["1974"]  # one feature contains the answer
