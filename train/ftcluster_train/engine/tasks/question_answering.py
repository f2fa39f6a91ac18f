"""Extractive question answering: the answer is a span of a context, as in SQuAD.

A long context becomes several overlapping features (see squad_features.py), and the best span of
all of them is the answer, as in run_qa (transformers, examples/pytorch/question-answering).
"""

from collections.abc import Mapping, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy
from transformers import AutoModelForQuestionAnswering

from ftcluster_common.columns import answering_columns
from ftcluster_common.job import PREDICT
from ftcluster_common.recipe import QuestionAnswering
from ftcluster_train.engine.data.sources import Rows, column_batches
from ftcluster_train.engine.data.token_store import Sample, Samples
from ftcluster_train.engine.metrics import squad_metrics
from ftcluster_train.engine.tasks.answer_spans import FeatureAnswer, Span, best_span, choose_answers
from ftcluster_train.engine.tasks.base import Batch, Document, Task
from ftcluster_train.engine.tasks.squad_features import FeatureWriter
from ftcluster_train.errors import TrainError

NO_ANSWER: dict[str, list[Any]] = {"text": [], "answer_start": []}


class QuestionAnsweringTask(Task):
    """Cross entropy over the feature's tokens of a span's start and of its end."""

    model_class = AutoModelForQuestionAnswering
    options: QuestionAnswering
    labelled = True

    def check_padding(self) -> None:
        if not self.tokenizer.is_fast:
            raise TrainError(
                f"the tokenizer {type(self.tokenizer).__name__} of "
                f"{self.recipe.tokenizer or self.recipe.model} does not give the characters of a "
                "token",
                "question answering needs a fast tokenizer, one with a tokenizer.json",
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
                "lower them",
            )
        return length, notices

    def encode_split(self, rows: Rows, split: str, limit: int, folder: Path) -> list[str]:
        answered = self.purpose != PREDICT
        columns = answering_columns(self.options, answered)
        writer = FeatureWriter(
            self.options, self.tokenizer, self.token_kinds(), folder, split, limit
        )
        for batch in column_batches(rows, columns, split):
            answers = [] if answered else [[NO_ANSWER] * len(batch[columns[0]])]
            writer.add(*(batch[name] for name in columns), *answers)
            for name in columns[:2]:
                self.look_for_special(batch[name])
        return writer.close()

    def documents(self, sample: Sample, samples: Samples) -> list[Document]:  # noqa: ARG002
        [start], [end], [null] = (sample[name] for name in ("start", "end", "null"))
        if start == null:
            return [Document(sample["input_ids"], label="no answer here")]
        return [Document(sample["input_ids"], range(start, end + 1), "an answer")]

    def collate(self, samples: Sequence[Sample]) -> Batch:
        # padded on the right, so that positions in a feature stay as they are
        targets = {
            name: torch.tensor([s[name][0] for s in samples], dtype=torch.int64)
            for name in ("start", "end")
        }
        inputs = self.pad(samples)
        return Batch(inputs, {**targets, "tokens": inputs["attention_mask"] > 0})

    def loss(self, outputs: Any, targets: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """The mean of both losses, summed over the features.

        Padding is masked, unlike in run_qa, which pads every feature to max_length: a feature's
        loss must not depend on the others of its batch.
        """

        def loss(logits: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
            masked = logits.float().masked_fill(~targets["tokens"], float("-inf"))
            return cross_entropy(masked, positions, reduction="sum")

        start = loss(outputs.start_logits, targets["start"])
        return (start + loss(outputs.end_logits, targets["end"])) / 2

    def predictions(self, outputs: Any, samples: Sequence[Sample]) -> list[Any]:
        """For each feature its question, the score of "no answer" and the best span."""
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
        """Exact match and F1 of the questions, in percent."""
        wanted = [question["answers"] for question in samples.about["questions"]]
        answers = self._answers(predictions, samples)
        return squad_metrics(answers, wanted, self.options.version_2_with_negative)

    def answers(self, predictions: Sequence[Any], samples: Samples) -> list[dict[str, Any]]:
        """The text of each question's answer, or "" for none."""
        return [{"prediction": answer} for answer in self._answers(predictions, samples)]

    def _answers(self, predictions: Sequence[Any], samples: Samples) -> list[str]:
        features = [
            FeatureAnswer(question, null, Span(*span) if span else None)
            for question, null, span in predictions
        ]
        negative = self.options.version_2_with_negative
        return choose_answers(
            features,
            [question["context"] for question in samples.about["questions"]],
            self.options.null_score_diff_threshold if negative else None,
        )
