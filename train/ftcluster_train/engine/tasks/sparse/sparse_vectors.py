"""The format of sparse vectors as predictions, and their scores in a search."""

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ftcluster_train.engine.tasks.embed.sentence_similarity import search_metrics

QUERIES = 256  # number of queries to multiply against all texts at once
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


def search(
    predictions: Sequence[Sequence[str]], width: int, about: Mapping[str, Any]
) -> dict[str, float]:
    """Return the metrics of a search by dot product, and the mean number of nonzero elements.

    Args:
        predictions: encoded vectors of all texts.
        width: number of elements of a vector.
        about: metadata from `embed.prompted_texts.Search.about`.
    """
    vectors = [decoded(prediction) for prediction in predictions]
    documents = [vectors[number] for number in about["documents"]]
    ends = torch.tensor([0, *(len(indices) for indices, _ in documents)]).cumsum(0)
    matrix = torch.sparse_csr_tensor(
        ends,
        torch.cat([indices for indices, _ in documents]),
        torch.cat([weights for _, weights in documents]),
        size=(len(documents), width),
        check_invariants=True,
    )

    def scores(queries: torch.Tensor) -> torch.Tensor:
        dense = torch.zeros(len(queries), width)
        for row, number in zip(dense, queries.tolist(), strict=True):
            indices, weights = vectors[number]
            row[indices] = weights
        products: torch.Tensor = matrix @ dense.T
        return products.T

    return {
        **search_metrics(scores, about, QUERIES),
        "query_active_dims": _mean_size([vectors[number] for number in about["queries"]]),
        "document_active_dims": _mean_size(documents),
    }


def _mean_size(vectors: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> float:
    return sum(len(indices) for indices, _ in vectors) / len(vectors)
