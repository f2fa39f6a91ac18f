"""Pairs of rows with equal and with different classes. Standard library only."""

import random
from collections.abc import Sequence
from itertools import combinations, cycle, islice

Pair = tuple[int, int, float]  # indices of two rows; 1.0 if their classes are equal, else 0.0


def contrastive_pairs(
    classes: Sequence[int], strategy: str, iterations: int | None, seed: int
) -> list[Pair]:
    """Return the pairs of an epoch in random order, following SetFit's sampling strategies.

    Unlike SetFit, this function pairs no row with itself, because such a pair's gradient is zero.

    Args:
        classes: class number of each row.
        strategy: oversampling, undersampling or unique.
        iterations: number of pairs of each kind (equal or different classes) per row; None to
            derive it from `strategy`.
    """
    draw = random.Random(seed)
    equal: list[Pair] = []
    different: list[Pair] = []
    for i, j in combinations(range(len(classes)), 2):
        if classes[i] == classes[j]:
            equal.append((i, j, 1.0))
        else:
            different.append((i, j, 0.0))
    counts = [len(equal), len(different)]
    if iterations:
        counts = [iterations * len(classes)] * 2
    elif strategy == "oversampling":
        counts = [max(counts)] * 2
    elif strategy == "undersampling":
        counts = [min(counts)] * 2
    pairs: list[Pair] = []
    for kind, count in zip((equal, different), counts, strict=True):
        draw.shuffle(kind)
        pairs += islice(cycle(kind), count)
    draw.shuffle(pairs)
    return pairs
