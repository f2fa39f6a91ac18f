"""Ranking metrics of scored texts, named as in MTEB."""

import math
from collections.abc import Iterable, Sequence

from ftcluster_train.engine.metrics import DEPTH, gain_at


def ranking_metrics(
    queries: Iterable[tuple[Sequence[float], Sequence[bool]]],
) -> dict[str, float]:
    """Return the metrics of `retrieval_metrics`, for texts ranked by their scores.

    If several texts have equal scores, each metric is the mean over all orders of these texts.
    scikit-learn's ndcg_score does the same (McSherry and Najork 2008, Computing Information
    Retrieval Performance Measures Efficiently in the Presence of Tied Scores).

    Args:
        queries: scores of each query's texts, and True for each text that belongs to the query.

    >>> ranking_metrics([([0.5, 0.5], [True, False])])["mrr_at_10"]
    0.75
    """
    gains, reciprocals, first = [], [], []
    for scores, relevant in queries:
        gain, reciprocal, missed, place = 0.0, 0.0, 1.0, 1
        groups: dict[float, list[bool]] = {}
        for score, right in zip(scores, relevant, strict=True):
            groups.setdefault(score, []).append(right)
        for number, score in enumerate(sorted(groups, reverse=True)):
            size, hits = len(groups[score]), sum(groups[score])
            if not number:
                first.append(hits / size)
            ranks = range(place, place + size)
            gain += hits / size * sum(gain_at(rank) for rank in ranks if rank <= DEPTH)
            # `missed`: probability that no text before the rank is relevant
            for wrong, rank in enumerate(ranks):
                hit = hits / (size - wrong) if wrong <= size - hits else 0.0
                if rank <= DEPTH and hits:
                    reciprocal += missed * hit / rank
                missed *= 1 - hit
            place += size
        best = sum(map(gain_at, range(1, min(sum(relevant), DEPTH) + 1)))
        gains.append(gain / best)
        reciprocals.append(reciprocal)
    return {
        f"ndcg_at_{DEPTH}": math.fsum(gains) / len(gains),
        f"mrr_at_{DEPTH}": math.fsum(reciprocals) / len(reciprocals),
        "accuracy_at_1": math.fsum(first) / len(first),
    }
