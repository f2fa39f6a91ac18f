"""Cross-encoders: one score for a query and a text that are read together."""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import binary_cross_entropy_with_logits
from transformers import AutoModelForSequenceClassification

from ftcluster_common.columns import RankingColumns, ranked_texts, ranking_columns
from ftcluster_common.data_files import TRAIN
from ftcluster_common.job import PREDICT
from ftcluster_common.recipe import TextRanking
from ftcluster_train.engine.data.sets import draw_rows
from ftcluster_train.engine.data.sources import BATCH_ROWS, Rows, find_columns, read_rows
from ftcluster_train.engine.data.token_store import Sample, Samples, SampleWriter
from ftcluster_train.engine.metrics import retrieval_metrics
from ftcluster_train.engine.models import longest_input
from ftcluster_train.engine.tasks.base import Batch, Document, Task
from ftcluster_train.errors import TrainError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

HALF = 0.5  # a text with a label of at least this belongs to the query


class TextRankingTask(Task):
    """Binary cross entropy of one logit for each pair."""

    model_class = AutoModelForSequenceClassification
    options: TextRanking

    def encode(self, data: str, longest: int | None, folder: Path) -> list[str]:
        if self.trained and self.trained.num_labels != 1:
            raise TrainError(
                f"{self.recipe.model} has {self.trained.num_labels} outputs, a reranker has one",
                "use the model of a run: ftcluster fetch RUN DIR, then --model DIR",
            )
        return super().encode(data, longest, folder)

    def draw_validation(self, rows: Rows, percent: float, seed: int) -> tuple[frozenset[int], str]:
        """All rows of a query are in the same set."""
        queries = [query for query, _ in self._rows_of(rows, TRAIN)]
        different = list(dict.fromkeys(queries))
        chosen = {different[n] for n in draw_rows([0 for _ in different], percent, seed)}
        numbers = frozenset(n for n, query in enumerate(queries) if query in chosen)
        return numbers, f"{len(chosen)} queries"

    def _rows_of(self, rows: Rows, split: str) -> Iterator[tuple[str, list[tuple[str, float]]]]:
        """The query of each row, and its texts with their labels."""
        columns = self._columns(rows, split)
        found = read_rows(rows, split, lambda row: ranked_texts(row, columns))
        return (texts for _, texts in found)

    def _columns(self, rows: Rows, split: str) -> RankingColumns:
        labelled = self.purpose != PREDICT
        return find_columns(
            rows, split, lambda names: ranking_columns(self.options, names, labelled)
        )

    def encode_split(self, rows: Rows, split: str, limit: int, folder: Path) -> list[str]:
        """Write one sample for each pair; returns notices."""
        kinds = self.token_kinds()
        writer = SampleWriter(folder, {**kinds, "label": "d", "query": "i"})
        numbers: dict[str, int] = {}  # of the queries
        cut, count, ranked_rows = 0, 0, self._rows_of(rows, split)
        while batch := list(islice(ranked_rows, BATCH_ROWS)):
            count += len(batch)
            pairs = [(query, *text) for query, texts in batch for text in texts]
            queries, texts, labels = map(list, zip(*pairs, strict=True))
            tokens, too_long = self.tokenize([queries, texts], limit)
            cut += too_long
            for i, (query, label) in enumerate(zip(queries, labels, strict=True)):
                query_number = numbers.setdefault(query, len(numbers))
                about = {"label": [label], "query": [query_number]}
                writer.add({**{name: tokens[name][i] for name in kinds}, **about})
        if not len(writer):
            raise TrainError(f"the data have no samples in {split}")
        (query, text, negatives, _), label = self._columns(rows, split)
        read = {"query_column": query, "text_column": text, "negative_columns": negatives}
        read |= {"label_column": label} if label else {}
        writer.close(columns=read, rows=count, cut=cut)
        return self.truncated(split, cut, limit)

    def documents(self, sample: Sample, samples: Samples) -> list[Document]:  # noqa: ARG002
        label = f"{sample['label'][0]:g}"
        return [Document(sample["input_ids"], (), label, [label])]

    def model_settings(self, train_set: Samples) -> dict[str, Any]:  # noqa: ARG002
        # with one output CrossEncoder of sentence-transformers needs no files of its own
        return {"id2label": {0: "LABEL_0"}, "label2id": {"LABEL_0": 0}}

    def check_model(self, model: "PreTrainedModel") -> None:
        if self.purpose == "train":  # the saved tokenizer cuts pairs where CrossEncoder reads them
            longest = longest_input(model.config, self.tokenizer) or self.options.max_length
            self.tokenizer.model_max_length = min(longest, self.options.max_length)

    def collate(self, samples: Sequence[Sample]) -> Batch:
        inputs = self.pad(samples, self.tokenizer.padding_side)
        return Batch(inputs, {"labels": _labels(samples)})

    def loss(self, outputs: Any, targets: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return _losses(outputs.logits, targets["labels"]).sum()

    def predictions(self, outputs: Any, samples: Sequence[Sample]) -> list[Any]:
        """For each pair its logit and its loss."""
        losses = _losses(outputs.logits, _labels(samples))
        logits = outputs.logits.float().squeeze(-1)
        return list(zip(logits.tolist(), losses.tolist(), strict=True))

    def score(self, predictions: Sequence[Any], samples: Samples) -> dict[str, float]:
        """How well the texts of each query are ordered, and how many are on the right side.

        Queries all of whose texts belong to them, or none, say nothing of an order.
        """
        logits, losses = zip(*predictions, strict=True)
        labels = [sample["label"][0] >= HALF for sample in samples]
        pairs: dict[int, list[int]] = {}  # numbers of the samples, by query
        for number, sample in enumerate(samples):
            pairs.setdefault(sample["query"][0], []).append(number)
        ordered, relevant = [], []
        for numbers in pairs.values():
            right = [number for number in numbers if labels[number]]
            if 0 < len(right) < len(numbers):
                # of equal scores a wrong text counts as the better one
                ordered.append(sorted(numbers, key=lambda n: (-logits[n], labels[n])))
                relevant.append(right)
        correct = sum((logit > 0) == label for logit, label in zip(logits, labels, strict=True))
        return {
            **(retrieval_metrics(ordered, relevant) if ordered else {}),
            "accuracy": correct / len(labels),
            "loss": math.fsum(losses) / len(losses),
        }

    def answers(self, predictions: Sequence[Any], _samples: Samples) -> list[dict[str, Any]]:
        """A score from 0 to 1, as `CrossEncoder.predict` gives it."""
        scores = torch.tensor([logit for logit, _ in predictions], dtype=torch.float64).sigmoid()
        return [{"prediction": round(score, 6)} for score in scores.tolist()]


def _labels(samples: Sequence[Sample]) -> torch.Tensor:
    return torch.tensor([sample["label"][0] for sample in samples], dtype=torch.float32)


def _losses(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The loss of each pair, in fp32."""
    return binary_cross_entropy_with_logits(logits.float().squeeze(-1), labels, reduction="none")
