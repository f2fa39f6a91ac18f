"""Conversion of answer spans between characters of a context and tokens of a feature.

A feature is a question with a part of its context. The features of a long context overlap.
`offsets` are the character ranges (begin, end) of a feature's context tokens. `first` is the index
of the first context token in the feature.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

Offsets = Sequence[tuple[int, int]]


@dataclass(frozen=True)
class AnswerSpan:
    """A part of a context, which may be an answer.

    Attributes:
        score: sum of the model's scores for the start and the end of the span.
        begin: index of the span's first character in the context.
        end: index after the span's last character in the context.
    """

    score: float
    begin: int
    end: int


def tokens_of_answer(offsets: Offsets, first: int, begin: int, end: int) -> tuple[int, int] | None:
    """Return the indices of an answer's first and last token; None if the feature lacks a part.

    Args:
        begin: index of the answer's first character in the context.
        end: index after the answer's last character in the context.
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
    """Return the best answer span in a feature, as in run_qa; None if no span is valid.

    Args:
        starts: the model's score of each context token as the start of the answer.
        ends: the model's score of each context token as the end of the answer.
        n_best: number of highest-scoring starts and ends to combine.
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
        example: index of the feature's question.
        null_score: the model's score for "no answer".
    """

    example: int
    null_score: float
    span: AnswerSpan | None


def choose_answers(
    features: Sequence[FeatureAnswer], contexts: Sequence[str], threshold: float | None
) -> list[str]:
    """Return the answer to each question: the best span over all features of the question.

    Args:
        threshold: an answer is empty if the lowest null score of its features exceeds the best
            span's score by more than this value. None forbids empty answers, as in SQuAD 1.1.
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
