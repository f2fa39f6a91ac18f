"""In-batch negatives, filtered by another embedding model (GISTEmbed, Solatorio 2024)."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from ftcluster_common.protocol.job import Purpose
from ftcluster_common.recipe import Recipe
from ftcluster_common.tasks.embed import GIST
from ftcluster_train.engine.data.sampler import length_groups
from ftcluster_train.engine.data.token_samples import Sample, Samples, token_kind
from ftcluster_train.engine.tasks.embed.embedding_teacher import TaughtEmbeddingTask
from ftcluster_train.engine.tasks.embed.in_batch_negatives import (
    NEGATIVE,
    POSITIVE,
    QUERY,
    BatchTexts,
)
from ftcluster_train.engine.tasks.embed.prompted_texts import PromptedText
from ftcluster_train.engine.tasks.embed.sentence_similarity import SentenceSimilarityTask
from ftcluster_train.engine.tasks.embed.vectors import decoded, encoded
from ftcluster_train.engine.tasks.registry import register

if TYPE_CHECKING:
    from transformers import PreTrainedModel

TextKey = tuple[int, bool]  # hash of a text, and True for a query: the guide has two prompts


@register
class GuidedSimilarityTask(TaughtEmbeddingTask, SentenceSimilarityTask):
    """Trains embeddings contrastively, without negatives that a guide rates as too similar.

    The guide is the recipe's teacher. Its embeddings of all training texts are computed once,
    before the first step.
    """

    references_validation = False  # retrieval metrics need no guide

    @classmethod
    def serves(cls, recipe: Recipe, purpose: Purpose) -> bool:
        return recipe.options.loss == GIST and purpose == "train"  # type: ignore[attr-defined]

    def __init__(self, recipe: Recipe, *others: Any) -> None:
        super().__init__(recipe, *others)
        plain = replace(self.options, loss="ranking", margin=None, margin_strategy="absolute")
        self.used_as = replace(recipe, options=plain, teacher=None)
        self._guides: dict[TextKey, torch.Tensor] = {}  # the guide's embeddings, of length 1

    def teacher_columns(self) -> dict[str, str]:
        kind = token_kind(len(self._teacher_reader.tokenizer))
        return {"teacher_ids": kind, "teacher_lengths": "i"}

    def teacher_tokens(self, rows: Sequence[Sequence[PromptedText]]) -> Iterator[Sample]:
        query, text = self._teacher.search_prompts
        texts = [
            f"{text if place else query}{prompted.text}"
            for row in rows
            for place, prompted in enumerate(row)
        ]
        tokens, _ = self._teacher_reader.tokenize([texts], self._teacher_limit)
        ids = iter(tokens["input_ids"])
        for row in rows:
            of_row = [next(ids) for _ in row]
            yield {
                "teacher_ids": [token for of_text in of_row for token in of_text],
                "teacher_lengths": list(map(len, of_row)),
            }

    def predict(self, model: "PreTrainedModel", samples: Sequence[Sample], bf16: bool) -> list[Any]:
        """Return predictions; the guide's predictions are the embeddings of each row's texts."""
        if model is not self.reference_model:
            return super().predict(model, samples, bf16)
        texts = [
            list(ids)
            for row in samples
            for ids in torch.tensor(row["teacher_ids"]).split(list(row["teacher_lengths"]))
        ]
        groups = length_groups(list(map(len, texts)))
        vectors = [
            self.teacher_vectors(model, [texts[number] for number in group], bf16)
            for group in groups
        ]
        places = torch.tensor([number for group in groups for number in group]).argsort()
        counts = [len(row["teacher_lengths"]) for row in samples]
        return [encoded(of_row) for of_row in torch.cat(vectors)[places].split(counts)]

    def set_reference(self, samples: Samples, predictions: Sequence[Any]) -> None:
        for number, of_row in enumerate(predictions):
            vectors = functional.normalize(decoded(of_row), dim=-1)
            texts = samples[number]["texts"]
            for place, (text, vector) in enumerate(zip(texts, vectors, strict=False)):
                self._guides[text, place == QUERY] = (
                    vector  # mined negatives are embedded with their own rows
                )

    def contrastive_loss(self, embeddings: torch.Tensor, batch: BatchTexts) -> torch.Tensor:
        guides = [
            self._guides[number, kind == QUERY]
            for number, kind in zip(batch.numbers.tolist(), batch.kinds.tolist(), strict=True)
        ]
        return gist_loss(
            embeddings, torch.stack(guides), batch, self.options.scale,
            self.options.least_margin, self.options.margin_strategy == "relative",
        )  # fmt: skip


def gist_loss(
    embeddings: torch.Tensor, guides: torch.Tensor, texts: BatchTexts, scale: float,
    margin: float, relative: bool,
) -> torch.Tensor:  # fmt: skip
    """Return this rank's part of the guided loss, the sum over its rows.

    This is sentence-transformers' GISTEmbedLoss, over the texts of all ranks. A row compares its
    query with all texts of the batch, and its positive with all positives. The loss ignores a text
    if the guide rates the compared pair as more similar than a limit. The limit is the guide's
    similarity of the row's own query and positive, minus the margin. As in `ranking_loss`, the loss
    also ignores texts that are equal to the row's query or positive, and texts that belong to the
    query in another row.

    Args:
        embeddings: embeddings of all texts, of length 1, shape (texts, width).
        guides: the guide's embeddings of the same texts, of length 1.
        texts: texts of the batch.
        scale: factor by which the cosines are multiplied.
        margin: minimum difference between the guide's similarities.
        relative: True if the margin is a fraction of the guide's similarity of the row's own pair.
    """
    rows = texts.rows
    query, positive, negative = (
        texts.numbers[texts.kinds == kind] for kind in (QUERY, POSITIVE, NEGATIVE)
    )
    of_query, of_positive = query[rows, None], positive[rows, None]
    same_query = of_query == query
    # True for compared texts that equal the row's texts or belong to the row's query, by block
    ignored = torch.cat(
        [
            same_query | (of_positive == positive) | (of_query == positive),
            same_query | (of_positive == query),
            same_query | (of_positive == positive),
            (of_query == negative) | (of_positive == negative),
        ],
        dim=1,
    )
    scores, guided = _candidates(embeddings, texts), _candidates(guides, texts)
    wanted = torch.arange(rows.start, rows.stop)
    own_pair = guided.gather(1, wanted[:, None])
    limit = own_pair - (own_pair.abs() * margin if relative else margin)
    ignored |= guided > limit
    ignored[torch.arange(len(wanted)), wanted] = False
    scores = (scale * scores).masked_fill(ignored, -torch.inf)
    return functional.cross_entropy(scores, wanted, reduction="sum")


def _candidates(vectors: torch.Tensor, texts: BatchTexts) -> torch.Tensor:
    """Return the cosines between this rank's rows and all texts that they are compared with.

    The blocks of columns are: query with positives, query with queries, positive with positives,
    query with negatives.
    """
    queries, positives, negatives = (
        vectors[texts.kinds == kind] for kind in (QUERY, POSITIVE, NEGATIVE)
    )
    own, own_positives = queries[texts.rows], positives[texts.rows]
    blocks = [own @ positives.T, own @ queries.T, own_positives @ positives.T, own @ negatives.T]
    return torch.cat(blocks, dim=1)
