"""The contrastive loss of a batch in which each text is a negative of the other queries."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch.nn import functional

from ftcluster_train.comm.gather_rows import count_rows, gather_rows
from ftcluster_train.comm.traffic import Traffic
from ftcluster_train.engine.data.token_samples import Sample

QUERY, POSITIVE, NEGATIVE = range(3)  # kinds of texts


class BatchTexts(NamedTuple):
    """The texts of all ranks' rows of a batch, in the order of ranks and rows.

    Attributes:
        numbers: numbers of the texts, shape (texts,), int64; equal texts have equal numbers.
        kinds: QUERY, POSITIVE or NEGATIVE, shape (texts,); each row has one query and then one
            positive.
        rows: range of this rank's rows.
        counts: number of texts of each rank.
        labels: score of each pair, NaN if it has none, shape (rows of all ranks,), fp64.
    """

    numbers: torch.Tensor
    kinds: torch.Tensor
    rows: slice
    counts: Sequence[int]
    labels: torch.Tensor


def gather_texts(rows: Sequence[Sample], traffic: Traffic) -> BatchTexts:
    """Return the texts of a batch, given this rank's rows of it; every rank calls it."""
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
    """Return the summed cross entropy of finding each query's text among all texts of a batch.

    The loss of sentence-transformers' MultipleNegativesRankingLoss, with scaled cosines as scores
    (van den Oord et al. 2018, Representation Learning with Contrastive Predictive Coding). A text
    is no negative for a query that is equal to it, or that it belongs to in another row: it is
    masked there. So a text may occur several times in a batch.

    Args:
        embeddings: embeddings of all texts, normalized to length 1, shape (texts, width).
        texts: texts of the batch; the losses of `texts.rows` are summed.
        symmetric: True for the mean of this loss and the loss of finding each text's query.
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
    """Return the summed loss of matching row i of `left` to row `own.start` + i of `right`."""
    wanted = torch.arange(own.start, own.stop)
    scores = scale * left @ right.T
    left_out[torch.arange(len(wanted)), wanted] = False
    scores = scores.masked_fill(left_out, -torch.inf)
    return functional.cross_entropy(scores, wanted, reduction="sum")
