"""Which samples a rank computes in which step. Every rank computes the same, so none is told."""

import math
from collections.abc import Iterator, Sequence

EVAL_TOKENS = 8192  # of a rank at once; without gradients there is room for more than in training


def own_share(indices: Sequence[int], rank: int, size: int) -> list[int]:
    """What one of `size` ranks has of a batch; the shares differ by one sample at most."""
    return list(indices[rank::size])


def micro_batches(share: Sequence[int], parts: int) -> list[list[int]]:
    """A rank's share in `parts` that differ by one sample at most; fewer where it has too few.

    >>> micro_batches([1, 2, 3, 4, 5], 2)
    [[1, 2, 3], [4, 5]]
    """
    edges = [math.ceil(i * len(share) / parts) for i in range(parts + 1)]
    cut = [list(share[edges[i] : edges[i + 1]]) for i in range(parts)]
    return [part for part in cut if part]


def eval_batches(lengths: Sequence[int], rank: int, size: int) -> Iterator[list[int]]:
    """Indices of a rank's batches of an evaluation: samples of like length together.

    Args:
        lengths: tokens of each sample.
        rank: from 0.
        size: number of ranks.
    """
    by_length = sorted(range(len(lengths)), key=lengths.__getitem__)
    batch: list[int] = []
    for index in by_length[rank::size]:  # each is at least as long as those before it
        if batch and (len(batch) + 1) * lengths[index] > EVAL_TOKENS:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch
