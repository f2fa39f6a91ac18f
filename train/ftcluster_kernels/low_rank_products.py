"""Multiplies by the factors of low-rank adapters, which have few columns, in our own loops.

Libraries for matrix multiplications pack both factors. With 16 columns, packing takes longer than
the multiplications, and the gradient of a factor needs the transpose of a whole activation. These
loops read the rows of an activation in order, and use them for all of their products. Sums and the
low-rank activations (`low`) are in fp32. The rank is padded to a multiple of GROUP with zeros.
"""

import torch
from torch.nn import functional

from ftcluster_kernels import simd
from ftcluster_kernels.products import fma_dtypes

GROUP = 16  # elements of a register
HIGHEST_RANK = 2 * GROUP  # above this, the libraries are as fast


def fits_loops(rank: int, *tensors: torch.Tensor) -> bool:
    """Return True if the loops support an adapter, and are faster than torch.

    Args:
        tensors: activations and factors.
    """
    return 0 < rank <= HIGHEST_RANK and simd.is_fit(*tensors)


def uses_pairs(dtype: torch.dtype, *sizes: int) -> bool:
    """Return True if the loops multiply pairs of bf16 elements instead of fp32 values.

    Args:
        sizes: inputs and outputs of the layer.
    """
    # on Intel's CPUs without AMX, multiply-adds in fp32 have twice the rate
    in_bf16 = dtype == torch.bfloat16 and dtype in fma_dtypes()
    return in_bf16 and all(size % 2 == 0 for size in sizes)


def add_adapter_(
    output: torch.Tensor, input: torch.Tensor, down: torch.Tensor, up: torch.Tensor, scale: float
) -> torch.Tensor:
    """Add the output of an adapter to the output of its layer, in place.

    Args:
        output, input: contiguous, shapes (rows, outputs) and (rows, inputs).
        down, up: factors of the same dtype, shapes (rank, inputs) and (outputs, rank).

    Returns:
        low = scale * input @ down.T in fp32, shape (rows, padded rank).
    """
    (rows, outputs), inputs, dtype = output.shape, input.shape[1], output.dtype
    in_pairs = uses_pairs(dtype, inputs, outputs)
    of_factors = torch.bfloat16 if in_pairs else torch.float32
    by_group, by_row = _by_group(down.T, in_pairs), _by_row(up.T, in_pairs)
    rank = by_row.numel() // outputs
    low = simd.empty(rows, rank)
    simd.call("low_rank_output", output, in_pairs, simd.typed(output, rows * outputs),
              simd.address(input, dtype, rows * inputs),
              simd.address(by_group, of_factors, inputs * rank),
              simd.address(by_row, of_factors, rank * outputs), simd.fp32(low, rows * rank), rows,
              inputs, outputs, rank, float(scale), types=(simd.TYPES[dtype],))  # fmt: skip
    return low


def adapter_gradients(
    grad: torch.Tensor,
    input: torch.Tensor,
    low: torch.Tensor,
    down: torch.Tensor,
    up: torch.Tensor,
    scale: float,
    grad_input: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the gradients of an adapter's factors in fp32, and complete the input's gradient.

    Args:
        grad, input: contiguous, shapes (rows, outputs) and (rows, inputs).
        low: result of `add_adapter_`, contiguous.
        grad_input: gradient of the layer's input without the adapter, contiguous, shape (rows,
            inputs); the adapter's part is added in place. None if it is not needed.

    Returns:
        The gradients of `down` and `up`, with zeros up to the padded rank.
    """
    (rows, outputs), inputs, dtype = grad.shape, input.shape[1], grad.dtype
    in_pairs = uses_pairs(dtype, inputs, outputs)
    of_factors = torch.bfloat16 if in_pairs else torch.float32
    by_group, by_row = _by_group(up, in_pairs), _by_row(down, in_pairs)
    rank, threads = by_row.numel() // inputs, simd.threads_for(grad)
    grad_low, sums = simd.empty(rows, rank), simd.zeros(threads, rank * (inputs + outputs))
    of_input = None
    if grad_input is not None:
        of_input = simd.address(grad_input, dtype, rows * inputs)
    simd.call("low_rank_gradients", grad, in_pairs, simd.typed(grad, rows * outputs),
              simd.address(input, dtype, rows * inputs), simd.fp32(low, rows * rank),
              simd.address(by_row, of_factors, rank * inputs),
              simd.address(by_group, of_factors, outputs * rank),
              simd.fp32(grad_low, rows * rank), of_input, simd.fp32(sums, sums.numel()), rows,
              inputs, outputs, rank, float(scale), types=(simd.TYPES[dtype],))  # fmt: skip
    total = sums.sum(0) if threads > 1 else sums[0]
    of_up, of_down = total.split((rank * outputs, rank * inputs))
    of_up = of_up.view(-1, outputs, GROUP).transpose(0, 1).reshape(outputs, rank)
    return of_down.view(-1, inputs, GROUP).transpose(1, 2).reshape(rank, inputs), of_up


def _by_group(factor: torch.Tensor, in_pairs: bool) -> torch.Tensor:
    """Return a factor of shape (size, rank) as (groups, size, GROUP), contiguous in fp32.

    In pairs, the result is in bf16 and has the shape (groups, size / 2, GROUP, 2).
    """
    size, rank = factor.shape
    if more := -rank % GROUP:
        factor = functional.pad(factor, (0, more))
    if in_pairs:
        return factor.reshape(size // 2, 2, -1, GROUP).permute(2, 0, 3, 1).contiguous()
    return factor.float().reshape(size, -1, GROUP).transpose(0, 1).contiguous()


def _by_row(factor: torch.Tensor, in_pairs: bool) -> torch.Tensor:
    """Return a factor of shape (rank, size) with rows of zeros up to a whole group.

    The result is contiguous in fp32; in pairs, it is in bf16 and has the shape (rank / 2, size, 2).
    """
    if more := -len(factor) % GROUP:
        factor = functional.pad(factor, (0, 0, 0, more))
    if in_pairs:
        return factor.reshape(len(factor) // 2, 2, -1).transpose(1, 2).contiguous()
    return factor.float().contiguous()
