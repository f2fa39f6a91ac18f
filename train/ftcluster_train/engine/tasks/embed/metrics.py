"""Retrieval metrics, named as in MTEB."""

import math
from collections.abc import Collection, Iterable, Sequence

from ftcluster_train.engine.metrics import DEPTH, gain_at


def retrieval_metrics(
    retrieved: Iterable[Sequence[int]], relevant: Sequence[Collection[int]]
) -> dict[str, float]:
    """Return retrieval metrics with binary relevance, averaged over the queries.

    nDCG is the DCG divided by the DCG of the best order. The DCG is the sum of 1 / log2(rank + 1)
    over the relevant texts (Järvelin and Kekäläinen 2002, Cumulated Gain-Based Evaluation of IR
    Techniques).

    Args:
        retrieved: indices of the retrieved texts for each query, best text first.
        relevant: indices of all relevant texts for each query.

    >>> retrieval_metrics([[3, 1]], [{1}])["mrr_at_10"]
    0.5
    """
    gains, ranks, first = [], [], []
    for texts, wanted in zip(retrieved, relevant, strict=True):
        hits = [rank for rank, text in enumerate(texts[:DEPTH], start=1) if text in wanted]
        best = sum(map(gain_at, range(1, min(len(wanted), DEPTH) + 1)))
        gains.append(sum(map(gain_at, hits)) / best)
        ranks.append(1 / hits[0] if hits else 0.0)
        first.append(float(hits[:1] == [1]))
    return {
        f"ndcg_at_{DEPTH}": math.fsum(gains) / len(gains),
        f"mrr_at_{DEPTH}": math.fsum(ranks) / len(ranks),
        "accuracy_at_1": math.fsum(first) / len(first),
    }


def recall(
    retrieved: Iterable[Sequence[int]], relevant: Sequence[Collection[int]], depth: int
) -> float:
    """Return the mean fraction of a query's relevant texts that are in the first `depth` ranks."""
    pairs = zip(retrieved, relevant, strict=True)
    shares = [len({*texts[:depth]} & {*wanted}) / len(wanted) for texts, wanted in pairs]
    return math.fsum(shares) / len(shares)
