"""Scores of the token vectors of queries and texts (MaxSim), and their format as predictions."""

import base64
from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.checkpoint import checkpoint

from ftcluster_train.engine.tasks.embed.corpus_search import Comparison

AT_ONCE = 1 << 24  # maximum number of token cosines in memory at once (64 MiB)
SMALLEST = -1.0  # cosine of a query token with a document that has no tokens to compare


def max_similarities(
    queries: Sequence[torch.Tensor], documents: Sequence[torch.Tensor]
) -> torch.Tensor:
    """Return the score of each query with each document in fp32, shape (queries, documents).

    A score is the sum, over the tokens of the query, of the largest dot product with a token of the
    document (Khattab and Zaharia 2020, ColBERT). In training, the backward pass recomputes the dot
    products of a few documents at a time, so they need not all be kept in memory.

    Args:
        queries: vectors of each query, shape (tokens, width).
        documents: vectors of each document, shape (tokens, width).
    """
    counts = [len(query) for query in queries]
    tokens = torch.cat([query.float() for query in queries])
    row_of = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    parts, begin = [], 0
    while begin < len(documents):
        end, longest = begin, 0
        while end < len(documents):
            longest = max(longest, len(documents[end]))
            if end > begin and (end + 1 - begin) * longest * len(tokens) > AT_ONCE:
                break
            end += 1
        parts.append(
            checkpoint(
                _scores, tokens, row_of, len(counts), *documents[begin:end], use_reentrant=False
            )
            if torch.is_grad_enabled()
            else _scores(tokens, row_of, len(counts), *documents[begin:end])
        )
        begin = end
    return torch.cat(parts, dim=1)


def _scores(
    tokens: torch.Tensor, row_of: torch.Tensor, count: int, *documents: torch.Tensor
) -> torch.Tensor:
    """Return the score of each query with each of a few documents.

    Args:
        tokens: vectors of all queries, shape (tokens of all queries, width).
        row_of: query index of each token.
        count: number of queries.
    """
    lengths = torch.tensor([len(document) for document in documents])
    rows = [d.float() if len(d) else d.new_zeros(1, d.shape[1]).float() for d in documents]
    padded = pad_sequence(rows, batch_first=True)
    is_padding = torch.arange(padded.shape[1]) >= lengths[:, None].clamp(min=1)
    products = torch.einsum("td,nld->tnl", tokens, padded)
    largest = products.masked_fill(is_padding, -torch.inf).amax(2)
    largest = largest.masked_fill(lengths == 0, SMALLEST)
    return torch.zeros(count, len(documents)).index_add(0, row_of, largest)


def encoded(vectors: Sequence[torch.Tensor]) -> list[str]:
    """Return the vectors of each text as base64 of their fp32 values."""
    arrays = (one.float().contiguous().numpy().tobytes() for one in vectors)
    return [base64.b64encode(array).decode("ascii") for array in arrays]


def decoded(prediction: str, width: int) -> torch.Tensor:
    """Decode the vectors of a text from the format of `encoded`, shape (tokens, width)."""
    values = bytearray(base64.b64decode(prediction))
    if not values:
        return torch.empty(0, width)
    return torch.frombuffer(values, dtype=torch.float32).view(-1, width)


def comparison(documents: Sequence[str], width: int) -> Comparison:
    """Return the comparison of queries with documents by MaxSim.

    Args:
        documents: encoded vectors of the documents.
        width: number of elements of a vector.
    """
    of_documents = [decoded(prediction, width) for prediction in documents]

    def scores(queries: Sequence[Any]) -> dict[str, torch.Tensor]:
        asked = [decoded(prediction, width) for prediction in queries]
        return {"": max_similarities(asked, of_documents)}

    return scores
