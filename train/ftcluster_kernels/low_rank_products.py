"""Multiplies by the factors of low-rank adapters, which have few columns, in our own loops.

Libraries for matrix multiplications pack both factors. With 16 columns, packing takes longer than
the multiplications, and the gradient of a factor even needs the transpose of a whole activation.
These loops read each activation once, in its own order, for both of its products. Sums are in fp32,
and the low-rank activations (`low`) also stay in fp32. Column counts are padded to GROUP with
zeros.
"""

import torch
from torch.nn import functional

from ftcluster_kernels import simd

GROUP = 16  # elements of a register
MOST_COLUMNS = 2 * GROUP  # above this, the libraries are as fast


def fits_loops(rank: int, *tensors: torch.Tensor) -> bool:
    """Return True if the loops multiply faster than torch.

    Args:
        tensors: all tensors of the multiplications, in bf16 or fp32.
    """
    return 0 < rank <= MOST_COLUMNS and simd.is_fit(*tensors)


def padded_groups(factor: torch.Tensor) -> torch.Tensor:
    """Return a factor of shape (columns, rank) in fp32 as (groups, columns, GROUP), contiguous."""
    columns, rank = factor.shape
    padded = functional.pad(factor.float(), (0, -rank % GROUP))
    return padded.view(columns, -1, GROUP).transpose(0, 1).contiguous()


def padded_rows(factor: torch.Tensor) -> torch.Tensor:
    """Return a factor of shape (rank, columns) in fp32 with zeros up to a multiple of GROUP rows."""
    return functional.pad(factor.float(), (0, 0, 0, -len(factor) % GROUP)).contiguous()


def row_products(values: torch.Tensor, factor: torch.Tensor, scale: float) -> torch.Tensor:
    """Return scale * values @ factor in fp32, shape (rows, padded rank).

    Args:
        values: contiguous, shape (rows, columns).
        factor: shape (columns, rank).
    """
    low, _ = _products(values, padded_groups(factor), scale, None)
    return low


def column_products(values: torch.Tensor, low: torch.Tensor) -> torch.Tensor:
    """Return values.T @ low in fp32, shape (columns, padded rank).

    Args:
        values: contiguous, shape (rows, columns).
        low: contiguous fp32, shape (rows, padded rank).
    """
    _, sums = _products(values, None, 1.0, low)
    return sums


def both_products(
    values: torch.Tensor, factor: torch.Tensor, scale: float, low: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the results of `row_products` and `column_products`, with one read of the values."""
    return _products(values, padded_groups(factor), scale, low)


def _products(
    values: torch.Tensor, groups: torch.Tensor | None, scale: float, low: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    rows, columns = values.shape
    count = len(groups) if groups is not None else low.shape[1] // GROUP  # type: ignore[union-attr]
    threads, width = simd.threads_for(values), count * GROUP
    of_rows = simd.empty(rows, width) if groups is not None else None
    sums = simd.zeros(threads, count, columns, GROUP) if low is not None else None
    matrices = (
        (groups, columns * width),
        (of_rows, rows * width),
        (low, rows * width),
        (sums, threads * columns * width),
    )
    addresses = [None if x is None else simd.fp32(x, size) for x, size in matrices]
    kind = simd.TYPES[values.dtype]
    simd.call("low_rank_products", values, simd.typed(values, rows * columns), rows, columns,
              count, *addresses, float(scale), types=(kind,))  # fmt: skip
    if sums is not None:
        sums = sums.sum(0) if threads > 1 else sums[0]
        sums = sums.transpose(0, 1).reshape(columns, width)
    return of_rows, sums  # type: ignore[return-value]


def add_product_(output: torch.Tensor, low: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    """Add low @ factor to the output, and return the output.

    Args:
        output: contiguous, shape (rows, columns).
        low: contiguous fp32, shape (rows, padded rank).
        factor: shape (rank, columns).
    """
    (rows, columns), width = output.shape, low.shape[1]
    right = padded_rows(factor)  # must exist during the call
    simd.call("add_low_rank", output, simd.typed(output, rows * columns),
              simd.fp32(low, rows * width), simd.fp32(right, width * columns), rows, columns,
              width // GROUP, types=(simd.TYPES[output.dtype],))  # fmt: skip
    return output
