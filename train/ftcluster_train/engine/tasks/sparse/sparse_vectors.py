"""The format of sparse vectors as predictions, and their scores in a search."""

import base64
from collections.abc import Sequence
from typing import Any

import torch

from ftcluster_train.engine.tasks.embed.corpus_search import Comparison

Encoded = tuple[str, str]  # base64 of the indices (int32) and of the weights (fp32) of a vector


def encoded(vectors: torch.Tensor) -> list[Encoded]:
    """Encode the indices and weights of each vector's nonzero elements."""
    predictions = []
    for vector in vectors:
        indices = vector.nonzero().squeeze(1)
        arrays = (indices.to(torch.int32), vector[indices].float())
        both = [base64.b64encode(array.numpy().tobytes()).decode("ascii") for array in arrays]
        predictions.append((both[0], both[1]))
    return predictions


def decoded(prediction: Sequence[str]) -> tuple[torch.Tensor, torch.Tensor]:
    """Decode a vector from the format of `encoded`; return its indices (int64) and weights."""
    indices, weights = (bytearray(base64.b64decode(text)) for text in prediction)
    if not indices:
        return torch.empty(0, dtype=torch.int64), torch.empty(0)
    return (
        torch.frombuffer(indices, dtype=torch.int32).long(),
        torch.frombuffer(weights, dtype=torch.float32),
    )


def comparison(documents: Sequence[Sequence[str]], width: int) -> Comparison:
    """Return the comparison of queries with documents by dot product.

    Args:
        documents: encoded vectors of the documents.
        width: number of elements of a vector.
    """
    vectors = [decoded(prediction) for prediction in documents]
    ends = torch.tensor([0, *(len(indices) for indices, _ in vectors)]).cumsum(0)
    matrix = torch.sparse_csr_tensor(
        ends,
        torch.cat([indices for indices, _ in vectors]),
        torch.cat([weights for _, weights in vectors]),
        size=(len(vectors), width),
        check_invariants=True,
    )

    def scores(queries: Sequence[Any]) -> dict[str, torch.Tensor]:
        dense = torch.zeros(len(queries), width)
        for row, query in zip(dense, queries, strict=True):
            indices, weights = decoded(query)
            row[indices] = weights
        products: torch.Tensor = matrix @ dense.T
        return {"": products.T}

    return scores
