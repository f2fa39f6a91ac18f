"""Cross-encoders, which read a query and a text together and return one score."""

import math
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, chain, count, islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss
from transformers import AutoModelForSequenceClassification

from ftcluster_common.data.data_files import TRAIN
from ftcluster_common.data.data_sets import is_train
from ftcluster_common.models.row_hashes import hash_of_text
from ftcluster_common.protocol.job import PREDICT
from ftcluster_common.recipe import Recipe
from ftcluster_common.tasks.rerank import (
    LIST_LOSSES,
    RankingColumns,
    TextRanking,
    ranked_texts,
    ranking_columns,
)
from ftcluster_train.engine.data.sets import draw_rows
from ftcluster_train.engine.data.sources import BATCH_ROWS, Rows, find_columns, read_rows
from ftcluster_train.engine.data.splits import INDEX, RowKeys, RowNumbers, numbers_of_hashes, shared
from ftcluster_train.engine.data.token_samples import Sample, Samples, SampleWriter
from ftcluster_train.engine.metrics import constant_notice
from ftcluster_train.engine.models import longest_input
from ftcluster_train.engine.tasks.base import Batch, Data, Document, Task
from ftcluster_train.engine.tasks.class_numbers import numbered
from ftcluster_train.engine.tasks.registry import register
from ftcluster_train.engine.tasks.rerank.metrics import ranking_metrics
from ftcluster_train.engine.tasks.rerank.score_activation import (
    Activation,
    activation_path,
    name_activation,
    score_activation,
)
from ftcluster_train.engine.tasks.rerank.scored_pairs import score_pairs
from ftcluster_train.engine.tasks.tokens import TOKENIZER_COLUMNS
from ftcluster_train.errors import TrainError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from ftcluster_train.comm.world import World
    from ftcluster_train.patching.batch_context import BatchContext

HALF = 0.5  # texts whose label is at least this value are relevant to their query


@register
class TextRankingTask(Task):
    """Trains a cross-encoder, which has one logit for each pair of a query and a text.

    A sample is a pair. If the loss compares lists of texts (listnet, margin_mse), a training sample
    is a row with several pairs.
    """

    name = "text-ranking"
    model_class = AutoModelForSequenceClassification
    options: TextRanking

    def __init__(self, recipe: Recipe, *others: Any) -> None:
        super().__init__(recipe, *others)
        self._folder: Path | None = None  # folder of the model
        self._activation: Activation = torch.sigmoid

    def inspect_model(self, folder: Path) -> None:
        self._folder = folder

    def encode(self, data: Data, longest: int | None, folder: Path) -> list[str]:
        if self.trained and self.trained.num_labels != 1:
            raise TrainError(
                f"{self.recipe.model} has {self.trained.num_labels} outputs, "
                "but a reranker has one",
                "use the model of a run: ftcluster fetch RUN DIR, then --model DIR",
            )
        # raises an error early if the activation is unknown
        score_activation(activation_path(self.trained, self._folder), self.recipe.model)
        return super().encode(data, longest, folder)

    def draw_validation(self, rows: Rows, percent: float, seed: int) -> tuple[RowNumbers, str]:
        """Draw rows for validation; rows with the same query stay in the same set."""
        queries = numbers_of_hashes(hash_of_text(query) for query, _ in self._rows_of(rows, TRAIN))
        chosen = draw_rows((0 for _ in range(1 + max(queries, default=-1))), percent, seed)
        numbers = RowNumbers(n for n, query in enumerate(queries) if query in chosen)
        return numbers, f"{len(chosen)} queries"

    def keys_of_rows(self, rows: Rows) -> RowKeys:
        """Return the query of each row; rows with the same query stay in the same set."""
        queries = [*shared(query for query, _ in self._rows_of(rows, TRAIN))]
        return RowKeys("query", queries, together=True)

    def _rows_of(self, rows: Rows, split: str) -> Iterator[tuple[str, list[tuple[str, float]]]]:
        """Yield each row's query, and its texts with their labels."""
        columns = self._columns(rows, split)
        placed = read_rows(rows, split, lambda row: ranked_texts(row, columns))
        return (texts for _, texts in placed)

    def _columns(self, rows: Rows, split: str) -> RankingColumns:
        labelled = self.purpose != PREDICT
        return find_columns(
            rows, split, lambda names: ranking_columns(self.options, names, labelled)
        )

    def encode_split(self, rows: Rows, split: str, limit: int, folder: Path) -> list[str]:
        """Write one sample for each pair, or for each row if the loss compares lists of texts."""
        kinds = self.reader.token_kinds()
        lists = is_train(split) and self.options.loss in LIST_LOSSES
        of_lists = {"lengths": "i"} if lists else {}
        writer = SampleWriter(folder, {**kinds, "label": "d", "query": "i", **of_lists})
        numbers: dict[str, int] = {}  # index of each query, keyed by the query's text
        cut, rows_read, most_texts = 0, 0, 0
        ranked_rows = self._rows_of(rows, split)
        while batch := list(islice(ranked_rows, BATCH_ROWS)):
            rows_read += len(batch)
            most_texts = max(most_texts, *(len(texts) for _, texts in batch))
            pairs = [(query, *text) for query, texts in batch for text in texts]
            queries, texts, _ = map(list, zip(*pairs, strict=True))
            tokens, too_long = self.reader.tokenize([queries, texts], limit)
            cut += too_long
            places = count()
            for query, ranked in batch:
                number = [numbers.setdefault(query, len(numbers))]
                own: list[Sample] = [
                    {**{name: tokens[name][place] for name in kinds}, "label": [label]}
                    for (_, label), place in zip(ranked, places, strict=False)
                ]
                for sample in [_joined(own)] if lists else own:
                    writer.add({**sample, "query": number})
        if not len(writer):
            raise TrainError(f"the data have no samples in {split}")
        if lists and most_texts == 1:
            raise TrainError(
                f"each row of {split} has one text, but loss={self.options.loss} compares the "
                "texts of a row",
                "put all texts of a query into one row: lists of texts and labels, or negatives",
            )
        (query, text, negatives, *_), label, _ = self._columns(rows, split)
        read = {"query_column": query, "text_column": text, "negative_columns": negatives}
        read |= {"label_column": label} if label else {}
        writer.close(columns=read, rows=rows_read, cut=cut)
        return self.truncated(split, cut, limit)

    def documents(self, sample: Sample, samples: Samples) -> list[Document]:  # noqa: ARG002
        return [
            Document(pair["input_ids"], (), label := f"{pair['label'][0]:g}", [label])
            for pair in _pairs([sample])
        ]

    def model_settings(self, train_set: Samples) -> dict[str, Any]:  # noqa: ARG002
        # sentence-transformers' CrossEncoder needs only this field for one output
        return numbered(["LABEL_0"])

    def check_model(self, model: "PreTrainedModel") -> None:
        path = activation_path(model.config, Path(model.name_or_path))
        self._activation = score_activation(path, self.recipe.model)
        if path is not None:  # keep the activation in the saved model
            name_activation(model.config, path)
        if self.purpose == "train":  # CrossEncoder then truncates pairs at the same length
            longest = longest_input(model.config, self.tokenizer) or self.options.max_length
            self.tokenizer.model_max_length = min(longest, self.options.max_length)

    def collate(self, samples: Sequence[Sample]) -> Batch:
        pairs = list(_pairs(samples))
        inputs = self.reader.pad(pairs, self.tokenizer.padding_side)
        targets = {"labels": _labels(pairs)}
        if self.options.loss in LIST_LOSSES:
            targets["counts"] = torch.tensor([len(sample["label"]) for sample in samples])
        return Batch(inputs, targets)

    def loss(self, outputs: Any, targets: Mapping[str, torch.Tensor]) -> torch.Tensor:
        labels = targets["labels"]
        if "counts" not in targets:
            return _losses(outputs.logits, labels).sum()
        return self._list_loss(
            outputs.logits.float().squeeze(-1), labels, targets["counts"].tolist()
        )

    def _list_loss(
        self, logits: torch.Tensor, labels: torch.Tensor, counts: Sequence[int]
    ) -> torch.Tensor:
        loss = margin_loss if self.options.loss == "margin_mse" else list_loss
        return loss(logits, labels, counts)

    def predictions(self, outputs: Any, samples: Sequence[Sample]) -> list[Any]:
        """Return the logit and the loss of each pair in a batch."""
        losses = _losses(outputs.logits, _labels(samples))
        logits = outputs.logits.float().squeeze(-1)
        return list(zip(logits.tolist(), losses.tolist(), strict=True))

    def condense(
        self, model: "PreTrainedModel", samples: Samples, world: "World", bf16: bool,
        context: "BatchContext | None",
    ) -> Sequence[Any]:  # fmt: skip
        """Return the same as `predict`, in an object that needs little memory."""
        return score_pairs(self, model, samples, world, bf16, context)

    def score(self, predictions: Sequence[Any], samples: Samples) -> dict[str, float]:
        """Return the mean ranking metrics of the queries, and the accuracy over pairs.

        The ranking metrics ignore a query if all of its texts are relevant, or if none are.
        """
        labels = array("B")  # 1 if a text is relevant
        pairs: dict[int, array[int]] = {}  # indices of the samples of each query
        for number, sample in enumerate(samples):
            labels.append(sample["label"][0] >= HALF)
            pairs.setdefault(sample["query"][0], array(INDEX)).append(number)
        mixed = [
            numbers
            for numbers in pairs.values()
            if 0 < sum(labels[number] for number in numbers) < len(numbers)
        ]
        ordered = (
            (
                [predictions[number][0] for number in numbers],
                [bool(labels[number]) for number in numbers],
            )
            for numbers in mixed
        )
        scored = zip(predictions, labels, strict=True)
        correct = sum((logit > 0) == label for (logit, _), label in scored)
        loss = math.fsum(loss for _, loss in predictions) / len(predictions)
        if self.options.loss in LIST_LOSSES:
            order = torch.tensor([number for numbers in pairs.values() for number in numbers])
            targets = torch.tensor([sample["label"][0] for sample in samples])
            counts = list(map(len, pairs.values()))
            logits = torch.tensor([logit for logit, _ in predictions])
            total = self._list_loss(logits[order], targets[order], counts)
            loss = total.item() / len(counts)
        return {
            **(ranking_metrics(ordered) if mixed else {}),
            "accuracy": correct / len(labels),
            "loss": loss,
        }

    def doubts(self, predictions: Sequence[Any], samples: Samples) -> str:
        labels = [sample["label"][0] for sample in samples]
        return constant_notice([logit for logit, _ in predictions], labels)

    def compared(
        self, predictions: Sequence[Any], samples: Samples
    ) -> tuple[Sequence[Any], Sequence[Any]]:
        """Return the score and the label of each pair."""
        scores = [answer["prediction"] for answer in self.answers(predictions, samples)]
        return scores, [sample["label"][0] for sample in samples]

    def answers(self, predictions: Sequence[Any], _samples: Samples) -> list[dict[str, Any]]:
        """Return the score of each pair, as `CrossEncoder.predict` computes it."""
        logits = torch.tensor([logit for logit, _ in predictions], dtype=torch.float64)
        scores = self._activation(logits)
        return [{"prediction": round(score, 6)} for score in scores.tolist()]


def list_loss(logits: torch.Tensor, labels: torch.Tensor, counts: Sequence[int]) -> torch.Tensor:
    """Return the sum over lists of the cross entropy between softmax(labels) and softmax(logits).

    Source: Cao et al. 2007, Learning to Rank: From Pairwise Approach to Listwise Approach (top 1).

    Args:
        counts: number of texts in each list; the lists are concatenated.
    """
    lists = zip(logits.split(counts), labels.split(counts), strict=True)
    return torch.stack([cross_entropy(scores, wanted.softmax(0)) for scores, wanted in lists]).sum()


def margin_loss(logits: torch.Tensor, labels: torch.Tensor, counts: Sequence[int]) -> torch.Tensor:
    """Return the sum of the lists' margin losses.

    The loss of a list is the mean squared difference between the model's margins and the
    teacher's. A margin is the score of the first text minus the score of another text. The loss of
    a list with one text is 0. Source: Hofstätter et al. 2020, Improving Efficient Neural Ranking
    Models with Cross-Architecture Knowledge Distillation.

    Args:
        logits: the model's score for each text, shape (texts,).
        labels: the teacher's score for each text, shape (texts,).
        counts: number of texts in each list; the lists are concatenated.
    """
    lists = zip(logits.split(counts), labels.split(counts), strict=True)
    losses = [
        mse_loss(scores[0] - scores[1:], wanted[0] - wanted[1:])
        for scores, wanted in lists
        if len(scores) > 1
    ]
    return torch.stack(losses).sum() if losses else logits.sum() * 0


def _joined(pairs: Sequence[Sample]) -> Sample:
    """Concatenate the pairs of a row into one sample."""
    joined = {name: list(chain.from_iterable(pair[name] for pair in pairs)) for name in pairs[0]}
    return {**joined, "lengths": [len(pair["input_ids"]) for pair in pairs]}


def _pairs(samples: Iterable[Sample]) -> Iterator[Sample]:
    """Yield each pair of each sample, as a sample with one pair."""
    for sample in samples:
        if "lengths" not in sample:
            yield sample
            continue
        columns = [name for name in TOKENIZER_COLUMNS if name in sample]
        ends = pairwise(accumulate(sample["lengths"], initial=0))
        for (begin, end), label in zip(ends, sample["label"], strict=True):
            yield {**{name: sample[name][begin:end] for name in columns}, "label": [label]}


def _labels(samples: Sequence[Sample]) -> torch.Tensor:
    return torch.tensor([sample["label"][0] for sample in samples], dtype=torch.float32)


def _losses(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the loss of each pair, in fp32."""
    return binary_cross_entropy_with_logits(logits.float().squeeze(-1), labels, reduction="none")
