"""The contrastive loss of a batch, in which a query's negatives are the texts of other rows."""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch.nn import functional

from ftcluster_train.comm.gather_rows import count_rows, gather_rows
from ftcluster_train.comm.traffic import Traffic
from ftcluster_train.engine.data.token_samples import Sample

QUERY, POSITIVE, NEGATIVE = range(3)  # kinds of texts


class BatchTexts(NamedTuple):
    """The texts in the rows of a batch, from all ranks, ordered by rank and row.

    Attributes:
        numbers: hashes of the texts, shape (texts,), int64; equal texts have equal hashes.
        kinds: QUERY, POSITIVE or NEGATIVE for each text, shape (texts,). Each row begins with one
            query and one positive.
        rows: range of this rank's rows among the rows of all ranks.
        counts: number of texts of each rank.
        labels: score of each row's pair, shape (rows of all ranks,), fp64; NaN for a row without a
            score.
        margins: the teacher's margin for each negative, shape (negatives of all ranks,), fp64; NaN
            if there is no teacher.
    """

    numbers: torch.Tensor
    kinds: torch.Tensor
    rows: slice
    counts: Sequence[int]
    labels: torch.Tensor
    margins: torch.Tensor = torch.empty(0)

    @property
    def documents(self) -> torch.Tensor:
        """The indices of all texts except queries: positives in row order, then negatives."""
        positives = torch.where(self.kinds == POSITIVE)[0]
        return torch.cat([positives, torch.where(self.kinds == NEGATIVE)[0]])

    def own_rows(self) -> Iterator[tuple[slice, torch.Tensor]]:
        """Yield the range of the texts of each row of this rank, and its negatives' margins."""
        begins = [*torch.where(self.kinds == QUERY)[0].tolist(), len(self.kinds)]
        for row in range(self.rows.start, self.rows.stop):
            begin, end = begins[row : row + 2]
            negatives = begin - 2 * row  # number of negatives in the rows before this one
            yield slice(begin, end), self.margins[negatives : negatives + end - begin - 2]


def gather_texts(rows: Sequence[Sample], traffic: Traffic) -> BatchTexts:
    """Gather the texts of all ranks' rows in a batch; every rank must call this function.

    Args:
        rows: rows of this rank.
    """
    pairs = [
        (text, min(place, NEGATIVE)) for row in rows for place, text in enumerate(row["texts"])
    ]
    labels = [label for row in rows for label in _values_of(row)]
    counts = count_rows(len(pairs), traffic)
    texts = torch.tensor(pairs, dtype=torch.int64).view(-1, 2)
    bits = torch.tensor(labels, dtype=torch.float64).view(torch.int64)
    gathered = gather_rows(torch.cat([texts, bits[:, None]], dim=1), counts, traffic)
    numbers, kinds, bits = gathered.T
    before = int((kinds[: sum(counts[: dist.get_rank()])] == QUERY).sum())
    values = bits.contiguous().view(torch.float64)
    return BatchTexts(
        numbers, kinds, slice(before, before + len(rows)), counts,
        values[kinds == QUERY], values[kinds == NEGATIVE],
    )  # fmt: skip


def _values_of(row: Sample) -> list[float]:
    """Return a value for each text of a row: the pair's score twice, then the margins."""
    score, negatives = row.get("label", [math.nan])[0], len(row["texts"]) - 2
    return [score, score, *row.get("margins", [math.nan] * negatives)]


def ranking_loss(
    embeddings: torch.Tensor, texts: BatchTexts, scale: float, symmetric: bool
) -> torch.Tensor:
    """Return the summed cross entropy of finding each query's text among the batch's texts.

    This is sentence-transformers' MultipleNegativesRankingLoss, with scaled cosines as scores (van
    den Oord et al. 2018, Representation Learning with Contrastive Predictive Coding). A text may
    occur several times in a batch. The loss of a query ignores texts that are equal to the query,
    and texts that belong to the query in another row.

    Args:
        embeddings: embeddings of all texts, of length 1, shape (texts, width).
        texts: texts of the batch; the loss is the sum over `texts.rows`.
        scale: factor by which the cosines are multiplied.
        symmetric: True to return the mean of this loss and the loss of finding each text's query.
    """
    own, is_query = texts.rows, texts.kinds == QUERY
    queries, documents = embeddings[is_query], embeddings[texts.documents]
    loss = matching_loss(scale * queries[own] @ documents.T, texts)
    if not symmetric:
        return loss
    query, document = texts.numbers[is_query], texts.numbers[texts.documents][: len(queries)]
    own_query, own_document = query[own, None], document[own, None]
    left_out = (own_query == query) | (own_document == document) | (own_document == query)
    scores = scale * documents[own] @ queries.T
    return (loss + _cross_entropy(scores, left_out, own)) / 2


def matching_loss(scores: torch.Tensor, texts: BatchTexts) -> torch.Tensor:
    """Return the loss of finding each query's text, summed over this rank's queries.

    Args:
        scores: score of each query of this rank with each text in `texts.documents`, shape (queries
            of this rank, documents).
    """
    is_query = texts.kinds == QUERY
    query, document = texts.numbers[is_query], texts.numbers[texts.documents]
    own_query, own_document = query[texts.rows, None], document[texts.rows, None]
    left_out = (own_query == document) | (own_document == document)
    left_out[:, : len(query)] |= own_query == query
    return _cross_entropy(scores, left_out, texts.rows)


def _cross_entropy(scores: torch.Tensor, left_out: torch.Tensor, own: slice) -> torch.Tensor:
    """Return the summed cross entropy, where column `own.start` + i is correct for row i.

    Args:
        left_out: True for pairs that the loss ignores.
    """
    wanted = torch.arange(own.start, own.stop)
    left_out[torch.arange(len(wanted)), wanted] = False
    scores = scores.masked_fill(left_out, -torch.inf)
    return functional.cross_entropy(scores, wanted, reduction="sum")
