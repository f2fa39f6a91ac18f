"""Answer spans: from characters of a context to tokens of a feature, and back.

A feature is a question with as much of its context as fits; features of a context overlap.
`offsets` are the (begin, end) characters of a feature's context tokens, `first` is the position of
the first context token.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

Offsets = Sequence[tuple[int, int]]


@dataclass(frozen=True)
class AnswerSpan:
    """A part of a context.

    Attributes:
        score: sum of the model's scores for the start and for the end.
        begin: index of the first character.
        end: index after the last character.
    """

    score: float
    begin: int
    end: int


def tokens_of_answer(offsets: Offsets, first: int, begin: int, end: int) -> tuple[int, int] | None:
    """Return the positions of the first and last token of the characters `begin` to `end`.

    Return None if the feature does not have all of these characters.
    """
    if not offsets or offsets[0][0] > begin or offsets[-1][1] < end:
        return None
    start = max(i for i, (token_begin, _) in enumerate(offsets) if token_begin <= begin)
    stop = min(i for i, (_, token_end) in enumerate(offsets) if token_end >= end)
    return first + start, first + max(start, stop)


def best_span(
    starts: Sequence[float],
    ends: Sequence[float],
    offsets: Offsets,
    n_best: int,
    max_answer_length: int,
) -> AnswerSpan | None:
    """Return the best span of a feature among the `n_best` starts and ends, as in run_qa.

    Args:
        starts: the model's score for each context token that the answer starts there.
        max_answer_length: maximum length of an answer in tokens.
    """
    places = range(len(offsets))
    best_starts = heapq.nlargest(n_best, places, key=starts.__getitem__)
    best_ends = heapq.nlargest(n_best, places, key=ends.__getitem__)
    spans = (
        AnswerSpan(starts[start] + ends[end], offsets[start][0], offsets[end][1])
        for start in best_starts
        for end in best_ends
        if start <= end < start + max_answer_length and offsets[start][0] < offsets[end][1]
    )
    return max(spans, key=lambda span: span.score, default=None)


@dataclass(frozen=True)
class FeatureAnswer:
    """The model's answer for one feature.

    Attributes:
        example: number of the feature's question.
        null_score: score of "no answer".
    """

    example: int
    null_score: float
    span: AnswerSpan | None


def choose_answers(
    features: Sequence[FeatureAnswer], contexts: Sequence[str], threshold: float | None
) -> list[str]:
    """Return the answer to each question: the best span of all its features.

    Args:
        threshold: minimum difference between the lowest null score of the features and the
            best span's score for an empty answer; None for no empty answers, as in SQuAD 1.1.
    """
    best: dict[int, AnswerSpan] = {}
    null: dict[int, float] = {}
    for feature in features:
        example, span = feature.example, feature.span
        null[example] = min(null.get(example, float("inf")), feature.null_score)
        if span and (example not in best or span.score > best[example].score):
            best[example] = span
    answers = []
    for example, context in enumerate(contexts):
        answer = best.get(example)
        if answer is None or (threshold is not None and null[example] - answer.score > threshold):
            answers.append("")
        else:
            answers.append(context[answer.begin : answer.end])
    return answers
