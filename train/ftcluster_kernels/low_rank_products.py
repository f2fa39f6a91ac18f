"""Multiplies by the factors of low-rank adapters, which have few columns, in our own loops.

Libraries for matrix multiplications pack both factors. With 16 columns, packing takes longer than
the multiplications, and the gradient of a factor needs the transpose of a whole activation. These
loops read the rows of an activation in order, and use them for all of their products. Sums and the
low-rank activations (`low`) are in fp32. The rank is padded to a multiple of GROUP with zeros.
"""

import torch
from torch.nn import functional

from ftcluster_kernels import simd

GROUP = 16  # elements of a register
HIGHEST_RANK = 2 * GROUP  # above this, the libraries are as fast


def fits_loops(rank: int, *tensors: torch.Tensor) -> bool:
    """Return True if the loops support an adapter, and are faster than torch.

    Args:
        tensors: activations and factors.
    """
    return 0 < rank <= HIGHEST_RANK and simd.is_fit(*tensors)


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
    (rows, outputs), inputs = output.shape, input.shape[1]
    by_group, by_row = _by_group(down.T), _by_row(up.T)
    rank = len(by_row)
    low = simd.empty(rows, rank)
    simd.call("low_rank_output", output, simd.typed(output, rows * outputs),
              simd.address(input, output.dtype, rows * inputs), simd.fp32(by_group, inputs * rank),
              simd.fp32(by_row, rank * outputs), simd.fp32(low, rows * rank), rows, inputs,
              outputs, rank, float(scale), types=(simd.TYPES[output.dtype],))  # fmt: skip
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
        low: result of `add_adapter_`.
        grad_input: gradient of the layer's input without the adapter, contiguous, shape (rows,
            inputs); the adapter's part is added in place. None if it is not needed.

    Returns:
        The gradients of `down` and `up`, with zeros up to the padded rank.
    """
    (rows, outputs), inputs = grad.shape, input.shape[1]
    by_group, by_row = _by_group(up), _by_row(down)
    rank, threads = len(by_row), simd.threads_for(grad)
    grad_low, sums = simd.empty(rows, rank), simd.zeros(threads, rank * (inputs + outputs))
    of_input = None
    if grad_input is not None:
        of_input = simd.address(grad_input, grad.dtype, rows * inputs)
    simd.call("low_rank_gradients", grad, simd.typed(grad, rows * outputs),
              simd.address(input, grad.dtype, rows * inputs), simd.fp32(low, rows * rank),
              simd.fp32(by_row, rank * inputs), simd.fp32(by_group, outputs * rank),
              simd.fp32(grad_low, rows * rank), of_input, simd.fp32(sums, sums.numel()), rows,
              inputs, outputs, rank, float(scale), types=(simd.TYPES[grad.dtype],))  # fmt: skip
    total = sums.sum(0) if threads > 1 else sums[0]
    of_up, of_down = (
        part.view(-1, size, GROUP)
        for part, size in zip(
            total.split((rank * outputs, rank * inputs)), (outputs, inputs), strict=True
        )
    )
    return of_down.transpose(1, 2).reshape(rank, inputs), of_up.transpose(0, 1).reshape(
        outputs, rank
    )


def _by_group(factor: torch.Tensor) -> torch.Tensor:
    """Return a factor of shape (size, rank) in fp32 as (groups, size, GROUP), contiguous."""
    size, rank = factor.shape
    if more := -rank % GROUP:
        factor = functional.pad(factor, (0, more))
    return (
        factor.view(size, -1, GROUP)
        .transpose(0, 1)
        .to(torch.float32, memory_format=torch.contiguous_format)
        .contiguous()
    )


def _by_row(factor: torch.Tensor) -> torch.Tensor:
    """Return a factor of shape (rank, size) in fp32, with rows of zeros up to a whole group."""
    if more := -len(factor) % GROUP:
        factor = functional.pad(factor, (0, 0, 0, more))
    return factor.to(torch.float32, memory_format=torch.contiguous_format).contiguous()
