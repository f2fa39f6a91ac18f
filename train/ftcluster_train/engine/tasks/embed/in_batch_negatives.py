"""The contrastive loss of a batch, whose texts are negatives of each other's queries."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch.nn import functional

from ftcluster_train.comm.collectives import Traffic, count_rows, gather_rows
from ftcluster_train.engine.data.token_store import Sample

QUERY, POSITIVE, NEGATIVE = range(3)  # what a text is


class BatchTexts(NamedTuple):
    """The texts of all ranks' rows of a batch, in the order of ranks and rows.

    Attributes:
        numbers: shape (texts,), int64, the same for equal texts.
        kinds: shape (texts,), QUERY, POSITIVE or NEGATIVE; each row has one query and then one
            positive.
        rows: those of this rank.
        counts: texts, by rank.
        labels: shape (rows of all ranks,), fp64: the score of each pair, NaN where it has none.
    """

    numbers: torch.Tensor
    kinds: torch.Tensor
    rows: slice
    counts: Sequence[int]
    labels: torch.Tensor


def gather_texts(rows: Sequence[Sample], traffic: Traffic) -> BatchTexts:
    """The texts of a batch, from this rank's rows of it; every rank calls it."""
    pairs = [
        (text, min(place, NEGATIVE)) for row in rows for place, text in enumerate(row["texts"])
    ]
    labels = [row.get("label", [math.nan])[0] for row in rows for _ in row["texts"]]
    counts = count_rows(len(pairs), traffic)
    texts = torch.tensor(pairs, dtype=torch.int64).view(-1, 2)
    bits = torch.tensor(labels, dtype=torch.float64).view(torch.int64)
    gathered = gather_rows(torch.cat([texts, bits[:, None]], dim=1), counts, traffic)
    numbers, kinds, bits = gathered.T
    before = int((kinds[: sum(counts[: dist.get_rank()])] == QUERY).sum())
    every = bits[kinds == QUERY].contiguous().view(torch.float64)
    return BatchTexts(numbers, kinds, slice(before, before + len(rows)), counts, every)


def ranking_loss(
    embeddings: torch.Tensor, texts: BatchTexts, scale: float, symmetric: bool
) -> torch.Tensor:
    """The cross entropy of finding each query's text among all texts of a batch, a sum.

    The loss of sentence-transformers' MultipleNegativesRankingLoss, with scaled cosines as scores
    (van den Oord et al. 2018, Representation Learning with Contrastive Predictive Coding). A text
    is no negative of a query that is equal to it, nor of one that it belongs to in another row: it
    is left out there. So a batch may have a text several times.

    Args:
        embeddings: of all texts, of length 1, shape (texts, width).
        texts: their `rows` are those whose losses are summed.
        symmetric: whether the loss is the mean of that and of finding each text's query.
    """
    own = texts.rows
    is_query, is_positive = texts.kinds == QUERY, texts.kinds == POSITIVE
    order = torch.cat([torch.where(is_positive)[0], torch.where(texts.kinds == NEGATIVE)[0]])
    queries, documents = embeddings[is_query], embeddings[order]
    query, document = texts.numbers[is_query], texts.numbers[order]
    own_query, own_document = query[own, None], document[own, None]
    count = len(query)  # the first documents are the positives, in the order of the queries

    left_out = (own_query == document) | (own_document == document)
    left_out[:, :count] |= own_query == query
    loss = _cross_entropy(queries[own], documents, left_out, own, scale)
    if not symmetric:
        return loss
    left_out = (own_query == query) | (own_document == document[:count]) | (own_document == query)
    return (loss + _cross_entropy(documents[own], queries, left_out, own, scale)) / 2


def _cross_entropy(
    left: torch.Tensor, right: torch.Tensor, left_out: torch.Tensor, own: slice, scale: float
) -> torch.Tensor:
    """The sum over finding row i of `right`, with i from the start of `own`, by row of `left`."""
    wanted = torch.arange(own.start, own.stop)
    scores = scale * left @ right.T
    left_out[torch.arange(len(wanted)), wanted] = False
    scores = scores.masked_fill(left_out, -torch.inf)
    return functional.cross_entropy(scores, wanted, reduction="sum")
