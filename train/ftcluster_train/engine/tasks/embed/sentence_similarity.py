"""Contrastive training of embeddings: queries become similar to the texts that match them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from ftcluster_common.data.data_files import found_columns
from ftcluster_common.data.data_sets import is_train
from ftcluster_common.protocol.job import PREDICT, Purpose
from ftcluster_common.recipe import Recipe
from ftcluster_common.tasks.embed import SCORE_LOSSES, TRIPLET, with_loss
from ftcluster_train.engine.data.sampler import length_groups
from ftcluster_train.engine.data.sources import BATCH_ROWS, Rows, columns_of
from ftcluster_train.engine.data.token_samples import Sample, Samples, SampleWriter
from ftcluster_train.engine.metrics import constant_notice
from ftcluster_train.engine.projections import project
from ftcluster_train.engine.tasks.base import Document, Forward
from ftcluster_train.engine.tasks.embed.embedded_texts import (
    close_set,
    margins_in,
    number_of_text,
    pair_columns,
    rows_of,
    scores_of,
    texts_in,
    texts_of,
)
from ftcluster_train.engine.tasks.embed.embedding_task import EmbeddingTask, learns_from_teacher
from ftcluster_train.engine.tasks.embed.in_batch_negatives import (
    BatchTexts,
    gather_texts,
    ranking_loss,
)
from ftcluster_train.engine.tasks.embed.metrics import recall, retrieval_metrics
from ftcluster_train.engine.tasks.embed.mined_negatives import with_hard_negatives
from ftcluster_train.engine.tasks.embed.pair_losses import (
    correlations,
    score_loss,
    teacher_loss,
    triplet_loss,
)
from ftcluster_train.engine.tasks.embed.prompted_texts import PromptedText, Search
from ftcluster_train.engine.tasks.embed.vectors import decoded, encoded, pooled
from ftcluster_train.engine.tasks.registry import register
from ftcluster_train.errors import TrainError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from ftcluster_train.comm.traffic import Traffic
    from ftcluster_train.comm.world import World
    from ftcluster_train.engine.progress import ProgressLog

RECALLS = (10, 100)
SCORED = 1024  # number of queries to multiply against all texts at once
OF_TEXTS = ("skipped", "expansion")  # columns of a sample that hold one value for each text
DIGITS = 8  # decimal places of the values of a predicted embedding


@register
class SentenceSimilarityTask(EmbeddingTask):
    """Trains embeddings contrastively; a query's negatives are the other texts of the batch.

    The batch includes the rows of all ranks. A step therefore computes all embeddings before it
    computes the loss, see `engine.step.GradientCacheStep`. In the training set, a sample is a row
    with all its texts. In other sets, a sample is a single text.
    """

    compares_batch = True
    # rows of equal length often share a topic and make poor negatives, so batches are random
    group_by_length = False

    @classmethod
    def serves(cls, recipe: Recipe, purpose: Purpose) -> bool:
        return not learns_from_teacher(recipe, purpose)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._chosen: set[str] = set()  # data sets whose rows determined the loss

    def inspect_rows(self, rows: Rows) -> None:
        if self.purpose != PREDICT and self.options.loss == "auto":
            self.options = with_loss(self.options, rows)
            self._chosen.add(self._data_set)

    def notices(self) -> list[str]:
        notices = super().notices()
        for name in self._options:
            with self.using(name):
                loss, uses = self.options.loss, self.uses_of.get(name, self.uses)
            if name in self._chosen and loss in SCORE_LOSSES:
                [label] = uses["label"]
                where = f"{name}: " * bool(name)
                notices.append(
                    f"{where}column {label} has scores, so pairs are trained on them: loss={loss}"
                )
        return notices

    def encode_split(self, rows: Rows, split: str, limit: int, folder: Path) -> list[str]:
        encode = self._encode_rows if is_train(split) else self._encode_texts
        return self.truncated(split, encode(rows, split, limit, folder), limit, "texts")

    def _encode_rows(self, rows: Rows, split: str, limit: int, folder: Path) -> int:
        """Write one sample for each row, with the concatenated tokens of the row's texts.

        Returns:
            The number of truncated texts.
        """
        columns = pair_columns(rows, self.options, split)
        if (
            self.options.loss == TRIPLET
            and not columns.negatives
            and not self.options.hard_negatives
        ):
            raise TrainError(
                f"{split} has no column with negatives, which loss=triplet needs; "
                f"{found_columns(columns_of(rows))}",
                "name the column, negative_columns=NAME, or search for negatives: hard_negatives=1",
            )
        if self.options.reads_margins and not (columns.negatives and columns.margins):
            lacking = "a teacher's margins" if columns.negatives else "negatives"
            raise TrainError(
                f"{split} has no column with {lacking}, which loss={self.options.loss} needs; "
                f"{found_columns(columns_of(rows))}",
                "name the columns: negative_columns=NAME label_column=NAME",
            )
        labels, margins = iter(scores_of(rows, columns, split)), margins_in(rows, columns, split)
        kinds = {**self.token_columns(), "lengths": "i", "texts": "q", **self.teacher_columns()}
        kinds |= {"label": "d"} if columns.loss else {}
        writer = SampleWriter(folder, {**kinds, "margins": "d"} if columns.margins else kinds)
        rows_of_texts, cut = self.with_prompts(rows_of(rows, columns, split)), 0
        while batch := list(islice(rows_of_texts, BATCH_ROWS)):
            columns_of_texts, too_long = self.tokens_of([t for row in batch for t in row], limit)
            cut += too_long
            for row, of_teacher in zip(batch, self.teacher_tokens(batch), strict=True):
                of_texts = [next(columns_of_texts) for _ in row]
                writer.add(
                    {
                        **_joined(of_texts),
                        "lengths": [len(of_text["input_ids"]) for of_text in of_texts],
                        "texts": [number_of_text(text.text) for text in row],
                        **({"label": [next(labels)]} if columns.loss else {}),
                        **({"margins": next(margins)} if columns.margins else {}),
                        **self.skipped_tokens(row, limit),
                        **of_teacher,
                    }
                )
        query, positive, negatives, *_ = columns
        read = {"query_column": query, "positive_column": positive, "negative_columns": negatives}
        return close_set(writer, split, cut, columns=read, rows=len(writer))

    def _encode_texts(self, rows: Rows, split: str, limit: int, folder: Path) -> int:
        """Write one sample for each text of the search problem, or for each text to predict.

        Returns:
            The number of truncated texts.
        """
        writer = SampleWriter(folder, self.token_columns())
        about: dict[str, Any] = {}
        texts: Iterator[PromptedText]
        if self.purpose == PREDICT:
            alone = ([text] for text in texts_of(rows, self.options, split))
            texts = (text for [text] in self.with_prompts(alone))
        else:
            columns = pair_columns(rows, self.options, split)
            prompted = list(self.with_prompts(rows_of(rows, columns, split)))
            search = Search.of(prompted)
            texts, about = iter(search.texts), search.about
            if columns.loss:
                numbers = {text: number for number, text in enumerate(search.texts)}
                about = {"pairs": [[numbers[text] for text in row] for row in prompted]}
                about["labels"] = list(scores_of(rows, columns, split))
        cut = 0
        while batch := list(islice(texts, BATCH_ROWS)):
            columns_of_texts, too_long = self.tokens_of(batch, limit)
            cut += too_long
            for text, of_text in zip(batch, columns_of_texts, strict=True):
                writer.add({**of_text, **self.skipped_tokens([text], limit)})
        return close_set(writer, split, cut, **about)

    def teacher_columns(self) -> dict[str, str]:
        """Return the columns that a teacher adds to training rows, and their array type codes."""
        return {}

    def teacher_tokens(self, rows: Sequence[Sequence[PromptedText]]) -> Iterator[Sample]:
        """Yield the values of `teacher_columns` for each row."""
        return ({} for _ in rows)

    def documents(self, sample: Sample, samples: Samples) -> list[Document]:
        if "lengths" not in sample:
            return super().documents(sample, samples)
        texts = list(texts_in(sample))
        labels = ("query", "positive", *["negative"] * len(texts))
        if "label" in sample:
            labels = ("text", f"score {sample['label'][0]:g}")
        return [Document(ids, label=label) for ids, label in zip(texts, labels, strict=False)]

    def prepare_train_set(
        self, model: "PreTrainedModel", train_set: Samples, world: "World", bf16: bool,
        log: "ProgressLog",
    ) -> Samples:  # fmt: skip
        if not self.options.hard_negatives:
            return train_set
        return with_hard_negatives(self, model, train_set, world, bf16, log)

    def gather_batch(self, samples: Sequence[Sample], traffic: "Traffic") -> BatchTexts:
        return gather_texts(samples, traffic)

    def vectors(self, samples: Sequence[Sample], forward: Forward) -> torch.Tensor:
        """Return the embeddings of the rows' texts, shape (texts, width).

        The embeddings are normalized to length 1, unless the loss compares them by dot product.
        """
        groups, places = self.group_texts(samples)
        embeddings = torch.cat([self.pool(*forward(group)) for group in groups])
        if not self.compares_dots:
            embeddings = functional.normalize(embeddings, dim=-1)
        return embeddings[places]

    def group_texts(self, rows: Sequence[Sample]) -> tuple[list[list[Sample]], torch.Tensor]:
        """Divide the texts of rows into groups of similar length.

        Returns:
            The groups of texts, and the index of each text in the concatenated groups.
        """
        texts = [ids for row in rows for ids in texts_in(row)]
        groups = length_groups(list(map(len, texts)))
        places = torch.tensor(list(chain.from_iterable(groups))).argsort()
        samples: list[Sample] = [{"input_ids": ids} for ids in texts]
        for name in OF_TEXTS:
            values = [value for row in rows for value in row.get(name, ())]
            for sample, value in zip(samples, values, strict=bool(values)):
                sample[name] = [value]
        return [[samples[i] for i in group] for group in groups], places

    def batch_loss(self, vectors: torch.Tensor, batch: BatchTexts) -> torch.Tensor:
        options = self.options
        weights = options.matryoshka_weights or [1.0] * len(options.matryoshka_dims)
        by_width = dict(zip(options.matryoshka_dims, weights, strict=True)) or {self.width: 1.0}
        scored = not batch.labels.isnan().any()
        total = torch.zeros(())
        for width, weight in by_width.items():
            first = _first(vectors, width)
            part = self.pair_loss if scored else self.contrastive_loss
            total = total + weight * part(first, batch)
        return total

    def pair_loss(self, embeddings: torch.Tensor, batch: BatchTexts) -> torch.Tensor:
        """Return this rank's part of the loss of pairs with scores, which are `batch.labels`.

        The embeddings have length 1. The sum over the ranks is the batch's loss times its number of
        pairs.
        """
        options = self.options
        # `auto` was replaced when the data were read
        loss = options.loss if options.loss in SCORE_LOSSES else "cosent"
        return score_loss(embeddings, batch, loss, options.scale, options.least_margin)

    def contrastive_loss(self, embeddings: torch.Tensor, batch: BatchTexts) -> torch.Tensor:
        """Return the sum of the losses of this rank's rows, from the embeddings of all ranks."""
        options = self.options
        if options.reads_margins:
            scores_of = partial(dot_products, embeddings)
            loss = teacher_loss(options.loss, scores_of, batch, options.temperature)
            return loss + 0 * embeddings.sum()  # a rank without rows has a gradient too
        if options.loss == TRIPLET:
            return triplet_loss(embeddings, batch, options.least_margin)
        return ranking_loss(embeddings, batch, options.scale, options.symmetric)

    def pool(self, outputs: Any, targets: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return one embedding for each text, in fp32.

        Args:
            outputs: outputs of the transformer.
            targets: dictionary with the mask `tokens`, shape (texts, length): 0 for padding and for
                tokens that are not pooled.
        """
        vectors = pooled(outputs.last_hidden_state, targets["tokens"], self.modules.pooling)
        return project(vectors, self.projections)

    def predictions(self, outputs: Any, samples: Sequence[Sample]) -> list[Any]:
        """Return the embedding of each text, as base64 of its fp32 values."""
        embeddings = self.pool(outputs, self.collate(samples).targets)
        if self.modules.normalize:
            embeddings = functional.normalize(embeddings, dim=-1)
        return encoded(embeddings)

    def score(self, predictions: Sequence[Any], samples: Samples) -> dict[str, float]:
        """Return retrieval metrics: how well queries find their texts in the set.

        The search ranks texts by cosine, or by dot product if the model's files say so. If pairs
        have scores, the metrics are the correlations of the cosines with these scores instead. For
        shortened embeddings (matryoshka_dims), the metric names end with the width, as in
        ndcg_at_10_dim_64.
        """
        embeddings, about = decoded(predictions), samples.about
        whole = embeddings.shape[1]
        metrics: dict[str, float] = {}
        for width in sorted({whole, *self.options.matryoshka_dims}, reverse=True):
            first = _first(embeddings, width, self.modules.similarity != "dot")
            if "pairs" in about:
                left, right = torch.tensor(about["pairs"]).T
                values = correlations(first[left], first[right], about["labels"])
            else:
                values = search(first, about)
            ending = "" if width == whole else f"_dim_{width}"
            metrics |= {f"{name}{ending}": value for name, value in values.items()}
        return metrics

    def doubts(self, predictions: Sequence[Any], samples: Samples) -> str:
        about = samples.about
        if "pairs" not in about:
            return ""
        embeddings = functional.normalize(decoded(predictions), dim=-1)
        left, right = torch.tensor(about["pairs"]).T
        cosines = (embeddings[left] * embeddings[right]).sum(1).tolist()
        return constant_notice(cosines, about["labels"])

    def answers(self, predictions: Sequence[Any], _samples: Samples) -> list[dict[str, Any]]:
        """Return the embedding of the text of each row, as a list of numbers."""
        return [
            {"prediction": [round(number, DIGITS) for number in numbers]}
            for numbers in decoded(predictions).tolist()
        ]


def dot_products(vectors: torch.Tensor, of_row: slice) -> torch.Tensor:
    """Return the dot products of a row's query with the other texts of the row.

    Args:
        vectors: vectors of all texts of a batch, shape (texts, width).
        of_row: range of the row's texts, of which the query is the first.
    """
    query, *_ = rows = vectors[of_row]
    products: torch.Tensor = rows[1:] @ query
    return products


def _joined(texts: Sequence[Mapping[str, list[int]]]) -> dict[str, list[int]]:
    """Return the columns of a row from the columns of its texts."""
    return {name: [*chain.from_iterable(text[name] for text in texts)] for name in texts[0]}


def _first(embeddings: torch.Tensor, width: int, whole: bool = False) -> torch.Tensor:
    """Return normalized embeddings, shortened to their first `width` values.

    Args:
        whole: True to normalize embeddings even if they are not shortened.
    """
    if width == embeddings.shape[1] and not whole:
        return embeddings
    return functional.normalize(embeddings[:, :width], dim=-1)


def search(embeddings: torch.Tensor, about: Mapping[str, Any]) -> dict[str, float]:
    """Return the retrieval metrics of a search problem.

    Args:
        embeddings: embeddings of all texts.
        about: metadata from `Search.about`.
    """
    documents = torch.tensor(about["documents"])
    return search_metrics(lambda queries: embeddings[queries] @ embeddings[documents].T, about)


def search_metrics(
    scores_of: Callable[[torch.Tensor], torch.Tensor],
    about: Mapping[str, Any],
    at_once: int = SCORED,
) -> dict[str, float]:
    """Return the retrieval metrics of a search problem.

    Args:
        scores_of: function from indices of queries to the scores of all documents, shape (queries,
            documents).
        about: metadata from `Search.about`.
        at_once: maximum number of queries to score at once.
    """
    documents = torch.tensor(about["documents"])
    retrieved: list[list[int]] = []
    for queries in torch.tensor(about["queries"]).split(at_once):
        scores = scores_of(queries)
        retrieved += documents[scores.topk(min(RECALLS[-1] + 1, len(documents))).indices].tolist()
    # a query must not find itself
    others = [
        [text for text in texts if text != same]
        for same, texts in zip(about["same"], retrieved, strict=True)
    ]
    recalls = {f"recall_at_{depth}": recall(others, about["relevant"], depth) for depth in RECALLS}
    return {**retrieval_metrics(others, about["relevant"]), **recalls}
