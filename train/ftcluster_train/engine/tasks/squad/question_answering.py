"""Extractive question answering: the answer is a span of a context, as in SQuAD.

A long context is divided into several overlapping features. The answer is the best span across
these features, as in run_qa (transformers, examples/pytorch/question-answering).
"""

from collections.abc import Mapping, Sequence
from dataclasses import astuple
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.nn.functional import cross_entropy
from transformers import AutoModelForQuestionAnswering, PreTrainedTokenizerBase

from ftcluster_common.data.answers import AnswerColumns
from ftcluster_common.data.row_checks import check_columns
from ftcluster_common.data.rows import DataError, Row
from ftcluster_common.protocol.job import PREDICT
from ftcluster_common.tasks.squad import (
    QuestionAnswering,
    answering_columns,
    answers_of,
    skip_reason,
)
from ftcluster_train.engine.data.sets import PREDICTED
from ftcluster_train.engine.data.sources import BATCH_ROWS, Rows, columns_of, read_rows
from ftcluster_train.engine.data.token_samples import Sample, Samples, SampleWriter
from ftcluster_train.engine.tasks.base import Batch, Document, Task
from ftcluster_train.engine.tasks.class_numbers import numbered
from ftcluster_train.engine.tasks.registry import register
from ftcluster_train.engine.tasks.squad.answer_spans import (
    AnswerSpan,
    FeatureAnswer,
    Offsets,
    best_span,
    choose_answers,
    tokens_of_answer,
)
from ftcluster_train.engine.tasks.squad.metrics import squad_metrics
from ftcluster_train.errors import TrainError

CONTEXT = 1  # index of the context in `sequence_ids`
POSITIONS = ("start", "end", "null", "first", "question")


class Question(NamedTuple):
    """A question, its context, and its answers in SQuAD format."""

    question: str
    context: str
    answers: Mapping[str, list[Any]]


class FeatureWriter:
    """Writes the features of a set, and counts truncated and skipped questions.

    A feature contains the tokenizer's columns and these columns:

    - `question`: index of the question.
    - `null`: index of the token whose scores mean "no answer".
    - `start` and `end`: indices of the answer's first and last token; both are `null` if the answer
      is not in the feature.
    - `first`: index of the first context token.
    - `begins` and `ends`: character range of each context token; empty in the training set.

    Args:
        length: maximum number of tokens of a feature.
    """

    def __init__(
        self,
        options: QuestionAnswering,
        tokenizer: PreTrainedTokenizerBase,
        kinds: Mapping[str, str],
        folder: Path,
        split: str,
        length: int,
    ) -> None:
        self._options, self._tokenizer, self._kinds = options, tokenizer, kinds
        self._split, self._length = split, length
        columns = dict.fromkeys((*POSITIONS, "begins", "ends"), "i")
        self._writer = SampleWriter(folder, {**kinds, **columns})
        self._questions: list[dict[str, Any]] = []
        self._kept = self._left_out = self._skipped = self._cut = 0

    def add(self, batch: Sequence[Question]) -> None:
        """Write the features of a batch of questions."""
        rows = list(batch)
        if not self._options.version_2_with_negative and self._split != PREDICTED:
            rows = [row for row in rows if row.answers["text"]]
        self._left_out += len(batch) - len(rows)
        if rows:
            self._write(*(list(column) for column in zip(*rows, strict=True)))

    def skip(self) -> None:
        """Count a question that the options skip."""
        self._skipped += 1

    def close(self) -> list[str]:
        """Close the files and return notices for the user.

        Raises:
            TrainError: there is no usable question.
        """
        split, unanswered = self._split, f"{self._left_out} questions without an answer"
        if not self._kept:
            raise TrainError(
                f"{split} has no questions" + (f", but {unanswered}" if self._left_out else ""),
                "to train on these questions too: version_2_with_negative=true"
                * bool(self._left_out),
            )
        left_out = self._left_out + self._skipped
        rows = self._kept + left_out
        self._writer.close(questions=self._questions, rows=rows, left_out=left_out)
        notices = [f"{split}: {self._kept} questions, {len(self._writer)} features"]
        if self._left_out:
            notices.append(f"{split}: {unanswered} are skipped (version_2_with_negative is false)")
        if self._cut:
            limit = self._options.max_query_length
            notices.append(f"{split}: {self._cut} questions were truncated to {limit} tokens")
        return notices

    def _write(self, questions: list[str], contexts: list[str], answers: list[Any]) -> None:
        encoded = self._tokenizer(
            self._truncated(questions),
            contexts,
            truncation="only_second",
            max_length=self._length,
            stride=self._options.doc_stride,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
        )
        for feature, row in enumerate(encoded["overflow_to_sample_mapping"]):
            sequence = encoded.sequence_ids(feature)
            of_context = [i for i, text in enumerate(sequence) if text == CONTEXT]
            first = of_context[0] if of_context else 0
            mapping = encoded["offset_mapping"][feature]
            offsets = [mapping[i] for i in of_context]
            null = self._null_position(encoded["input_ids"][feature])
            start, end = _answer_positions(answers[row], offsets, first) or (null, null)
            if self._split == "train":
                offsets = []  # training does not need this column, the largest one
            self._writer.add(
                {
                    **{name: encoded[name][feature] for name in self._kinds},
                    "start": [start],
                    "end": [end],
                    "null": [null],
                    "first": [first],
                    "question": [self._kept + row],
                    "begins": [begin for begin, _ in offsets],
                    "ends": [end for _, end in offsets],
                }
            )
        self._kept += len(questions)
        if self._split != "train":
            self._questions += [
                {"context": context, "answers": list(answer["text"])}
                for context, answer in zip(contexts, answers, strict=True)
            ]

    def _truncated(self, questions: list[str]) -> list[str]:
        """Return the questions, truncated to max_query_length tokens."""
        limit = self._options.max_query_length
        encoded = self._tokenizer(questions, add_special_tokens=False, return_offsets_mapping=True)
        truncated = list(questions)
        for i, ids in enumerate(encoded["input_ids"]):
            if len(ids) > limit:
                self._cut += 1
                truncated[i] = questions[i][: encoded["offset_mapping"][i][limit - 1][1]]
        return truncated

    def _null_position(self, ids: Sequence[int]) -> int:
        """Return the index of the first special token, whose scores mean "no answer"."""
        for token in (self._tokenizer.cls_token_id, self._tokenizer.bos_token_id):
            if token in ids:
                return ids.index(token)
        return 0


def _answer_positions(
    answers: Mapping[str, Any], offsets: Offsets, first: int
) -> tuple[int, int] | None:
    """Return the indices of the first and last token of the first answer, or None.

    The result is None if the feature does not contain the whole answer.
    """
    if not answers["text"]:
        return None
    begin = answers["answer_start"][0]
    return tokens_of_answer(offsets, first, begin, begin + len(answers["text"][0]))


def _question(row: Row, columns: AnswerColumns, options: QuestionAnswering) -> Question | None:
    """Return the question of a row, or None if the options skip the row.

    Raises:
        DataError: the row is not valid.
    """
    if not columns.answers:
        if problem := check_columns(columns[:2], [], row):
            raise DataError(problem)
        answers: dict[str, list[Any]] = {"text": [], "answer_start": []}
    elif skip_reason(row, columns, options):
        return None
    else:
        answers = answers_of(row, columns, options)
    return Question(row[columns.question], row[columns.context], answers)


@register
class QuestionAnsweringTask(Task):
    """Trains with the cross entropy of an answer's start and end over the tokens of a feature."""

    name = "question-answering"
    model_class = AutoModelForQuestionAnswering
    options: QuestionAnswering
    labelled = True
    reads_padding = False

    def check_padding(self) -> None:
        if not self.tokenizer.is_fast:
            raise TrainError(
                f"the tokenizer {type(self.tokenizer).__name__} of "
                f"{self.recipe.tokenizer or self.recipe.model} does not report the characters of a "
                "token",
                "use a fast tokenizer, which has a tokenizer.json: tokenizer=DIR",
            )
        super().check_padding()

    def limit_length(self, wanted: int, field: str, longest: int | None) -> tuple[int, list[str]]:
        length, notices = super().limit_length(wanted, field, longest)
        special = self.tokenizer.num_special_tokens_to_add(pair=True)
        least = self.options.max_query_length + self.options.doc_stride + special + 1
        if length < least:
            raise TrainError(
                f"{length} tokens have no room for a context; with max_query_length="
                f"{self.options.max_query_length} and doc_stride={self.options.doc_stride} a "
                f"feature has at least {least}",
                "lower max_query_length or doc_stride",
            )
        return length, notices

    def encode_split(self, rows: Rows, split: str, limit: int, folder: Path) -> list[str]:
        answered = self.purpose != PREDICT
        columns = answering_columns(self.options, columns_of(rows), answered)
        writer = FeatureWriter(
            self.options, self.tokenizer, self.reader.token_kinds(), folder, split, limit
        )
        questions = read_rows(rows, split, lambda row: _question(row, columns, self.options))
        while batch := list(islice(questions, BATCH_ROWS)):
            kept = [question for _, question in batch if question is not None]
            for _ in range(len(batch) - len(kept)):
                writer.skip()
            writer.add(kept)
            for question in kept:
                self.reader.count_special(question[:2])
        return writer.close()

    def documents(self, sample: Sample, samples: Samples) -> list[Document]:  # noqa: ARG002
        [start], [end], [null] = (sample[name] for name in ("start", "end", "null"))
        if start == null:
            return [Document(sample["input_ids"], label="no answer here")]
        return [Document(sample["input_ids"], range(start, end + 1), "an answer")]

    def model_settings(self, train_set: Samples) -> dict[str, Any]:  # noqa: ARG002
        # the model has two outputs per token: the scores for start and end
        return numbered(["LABEL_0", "LABEL_1"])

    def collate(self, samples: Sequence[Sample]) -> Batch:
        # padding on the right keeps the token indices of a feature
        targets = {
            name: torch.tensor([s[name][0] for s in samples], dtype=torch.int64)
            for name in ("start", "end")
        }
        inputs = self.reader.pad(samples)
        return Batch(inputs, {**targets, "tokens": inputs["attention_mask"] > 0})

    def loss(self, outputs: Any, targets: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return the mean of the start and end losses, summed over the features.

        Padding is masked, so that the loss of a feature does not depend on the other features of
        its batch. run_qa does not mask padding, but pads every feature to max_length.
        """

        def loss(logits: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
            masked = logits.float().masked_fill(~targets["tokens"], float("-inf"))
            return cross_entropy(masked, positions, reduction="sum")

        start = loss(outputs.start_logits, targets["start"])
        return (start + loss(outputs.end_logits, targets["end"])) / 2

    def predictions(self, outputs: Any, samples: Sequence[Sample]) -> list[Any]:
        """Return each feature's question, its score for "no answer", and its best span."""
        starts, ends = outputs.start_logits.float(), outputs.end_logits.float()
        spans = []
        for i, sample in enumerate(samples):
            offsets = list(zip(sample["begins"], sample["ends"], strict=True))
            first, null = sample["first"][0], sample["null"][0]
            context = slice(first, first + len(offsets))
            span = best_span(
                starts[i, context].tolist(), ends[i, context].tolist(), offsets,
                self.options.n_best_size, self.options.max_answer_length,
            )  # fmt: skip
            null_score = float(starts[i, null] + ends[i, null])
            spans.append((sample["question"][0], null_score, astuple(span) if span else None))
        return spans

    def score(self, predictions: Sequence[Any], samples: Samples) -> dict[str, float]:
        """Return exact match and F1 over the questions, in percent."""
        wanted = [question["answers"] for question in samples.about["questions"]]
        answers = self._answers(predictions, samples)
        return squad_metrics(answers, wanted, self.options.version_2_with_negative)

    def compared(
        self, predictions: Sequence[Any], samples: Samples
    ) -> tuple[Sequence[Any], Sequence[Any]]:
        """Return the predicted answer and the list of true answers to each question."""
        right = [question["answers"] for question in samples.about["questions"]]
        return self._answers(predictions, samples), right

    def answers(self, predictions: Sequence[Any], samples: Samples) -> list[dict[str, Any]]:
        """Return the text of the answer to each question, or "" for no answer."""
        return [{"prediction": answer} for answer in self._answers(predictions, samples)]

    def _answers(self, predictions: Sequence[Any], samples: Samples) -> list[str]:
        features = [
            FeatureAnswer(question, null, AnswerSpan(*span) if span else None)
            for question, null, span in predictions
        ]
        negative = self.options.version_2_with_negative
        return choose_answers(
            features,
            [question["context"] for question in samples.about["questions"]],
            self.options.null_score_diff_threshold if negative else None,
        )
