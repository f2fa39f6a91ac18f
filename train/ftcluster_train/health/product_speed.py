"""How fast a rank computes a model's matrix products alone: the limit of its training."""

import math
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

ROWS = 1024  # more make a product hardly faster
SECONDS = 0.02  # of each shape, after a first product that generates the kernel
SHAPES = 8  # those with the most weights


def product_shapes(model: Any) -> Counter[tuple[int, int]]:
    """The shapes of the weights in a model's matrix products, with how many have them.

    Each weight takes 6 operations a token, forward and backward.
    """
    import torch
    from transformers.pytorch_utils import Conv1D

    from ftcluster_train.kernels.nf4 import shape_of

    kinds = (torch.nn.Linear, Conv1D)
    shapes = (shape_of(module.weight) for module in model.modules() if isinstance(module, kinds))
    return Counter((int(rows), int(columns)) for rows, columns in shapes)


def weights_of(shapes: Mapping[tuple[int, int], int]) -> int:
    """How many weights these are."""
    return sum(one * other * count for (one, other), count in shapes.items())


def product_gflops(shapes: Mapping[tuple[int, int], int], tokens: int, dtype: Any) -> float:
    """1e9 operations per second of these products forward, with this process' threads.

    The best of each shape counts, because other processes may disturb some.

    Args:
        tokens: that a rank computes at once.
    """
    import torch

    rows = max(1, min(tokens, ROWS))
    largest = sorted(shapes, key=lambda shape: -shape[0] * shape[1] * shapes[shape])[:SHAPES]
    operations = seconds = 0.0
    with torch.inference_mode():
        for inner, columns in largest:
            left = torch.ones(rows, inner, dtype=dtype)
            right = torch.ones(inner, columns, dtype=dtype)
            torch.mm(left, right)
            best, end = math.inf, time.perf_counter() + SECONDS
            while (began := time.perf_counter()) < end:
                torch.mm(left, right)
                best = min(best, time.perf_counter() - began)
            count = shapes[inner, columns]
            operations += count * 2e-9 * rows * inner * columns
            seconds += count * best
    return round(operations / seconds, 1) if seconds else 0.0
