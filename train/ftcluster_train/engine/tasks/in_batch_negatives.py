"""The contrastive loss of a batch, whose texts are negatives of each other's queries."""

from typing import NamedTuple

import torch
from torch.nn import functional

QUERY, POSITIVE, NEGATIVE = range(3)  # what a text is


class Texts(NamedTuple):
    """What is known of the texts of some rows, in the order of the rows.

    Attributes:
        texts: shape (texts,), int64, the same for equal texts.
        kinds: shape (texts,), QUERY, POSITIVE or NEGATIVE; each row has one query and then one
            positive.
    """

    texts: torch.Tensor
    kinds: torch.Tensor


def ranking_loss(
    embeddings: torch.Tensor, texts: Texts, own: slice, scale: float, symmetric: bool
) -> torch.Tensor:
    """The cross entropy of finding each query's text among all texts of the batch, a sum.

    The loss of sentence-transformers' MultipleNegativesRankingLoss, with scaled cosines as scores
    (van den Oord et al. 2018, Representation Learning with Contrastive Predictive Coding). A text
    is no negative of a query that is equal to it, nor of one that it belongs to in another row: it
    is left out there. So a batch may have a text several times.

    Args:
        embeddings: of all texts of the batch, of length 1, shape (texts, width).
        own: the rows whose losses are summed.
        symmetric: whether the loss is the mean of that and of finding each text's query.
    """
    is_query, is_positive = texts.kinds == QUERY, texts.kinds == POSITIVE
    order = torch.cat([torch.where(is_positive)[0], torch.where(texts.kinds == NEGATIVE)[0]])
    queries, documents = embeddings[is_query], embeddings[order]
    query, document = texts.texts[is_query], texts.texts[order]
    own_query, own_document = query[own, None], document[own, None]
    rows = len(query)  # the first documents are the positives, in the order of the queries

    left_out = (own_query == document) | (own_document == document)
    left_out[:, :rows] |= own_query == query
    loss = _cross_entropy(queries[own], documents, left_out, own, scale)
    if not symmetric:
        return loss
    left_out = (own_query == query) | (own_document == document[:rows]) | (own_document == query)
    return (loss + _cross_entropy(documents[own], queries, left_out, own, scale)) / 2


def _cross_entropy(
    left: torch.Tensor, right: torch.Tensor, left_out: torch.Tensor, own: slice, scale: float
) -> torch.Tensor:
    """Of finding row i of `right`, where i counts from the start of `own`, by row of `left`."""
    wanted = torch.arange(own.start, own.stop)
    scores = scale * left @ right.T
    left_out[torch.arange(len(wanted)), wanted] = False
    scores = scores.masked_fill(left_out, -torch.inf)
    return functional.cross_entropy(scores, wanted, reduction="sum")
