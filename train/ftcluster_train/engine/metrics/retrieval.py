"""Metrics of retrieval in plain Python, named as MTEB names them."""

import math
from collections.abc import Collection, Sequence

DEPTH = 10  # the texts that are found for a query


def retrieval_metrics(
    found: Sequence[Sequence[int]], relevant: Sequence[Collection[int]]
) -> dict[str, float]:
    """Means over the queries; a text is relevant or not.

    nDCG is DCG divided by that of the best order, with DCG the sum of 1 / log2(rank + 1) over the
    relevant texts (Järvelin and Kekäläinen 2002, Cumulated Gain-Based Evaluation of IR Techniques).

    Args:
        found: for each query the numbers of texts, the best one first.
        relevant: for each query the numbers of all texts that belong to it.

    >>> retrieval_metrics([[3, 1]], [{1}])["mrr_at_10"]
    0.5
    """
    gains, ranks, first = [], [], []
    for texts, wanted in zip(found, relevant, strict=True):
        hits = [rank for rank, text in enumerate(texts[:DEPTH], start=1) if text in wanted]
        best = sum(map(_gain, range(1, min(len(wanted), DEPTH) + 1)))
        gains.append(sum(map(_gain, hits)) / best)
        ranks.append(1 / hits[0] if hits else 0.0)
        first.append(float(hits[:1] == [1]))
    return {
        f"ndcg_at_{DEPTH}": math.fsum(gains) / len(gains),
        f"mrr_at_{DEPTH}": math.fsum(ranks) / len(ranks),
        "accuracy_at_1": math.fsum(first) / len(first),
    }


def _gain(rank: int) -> float:
    return 1 / math.log2(rank + 1)
