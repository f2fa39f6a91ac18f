"""Computes linear layers without output rows that nothing reads and gradient rows of zeros.

A classifier reads one token of each sample. In the last block, therefore, only one row of each
sample has a gradient in the queries, in the attention's output and in the two layers after it.
Padding has no gradient in any layer, and a prompt has no gradient in the last layer. Skipping rows
of zeros does not change the result, apart from rounding.
"""

from typing import Any

import torch

from ftcluster_kernels import simd
from ftcluster_kernels.derivatives import needs_torch
from ftcluster_kernels.gradient_sums import GradientSums, unless_hooked
from ftcluster_kernels.private_torch import is_transformed
from ftcluster_kernels.products import product, product_of_columns, torch_linear

MANY_ROWS = 0.75  # above this fraction of rows, selecting rows costs as much as it saves
MUCH_WORK = 1 << 26  # with fewer multiplications in a matmul, checking the rows does not pay
# indices of the rows that are checked first: multiples of a prime, so that the rows are at
# different positions in the samples
LOOKED_AT = torch.arange(32, dtype=torch.int64, device="cpu") * 7919
INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}  # keys: size in bytes


def linear(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    rows_read: torch.Tensor | None = None,
    sums: GradientSums | None = None,
) -> torch.Tensor:
    """Compute `torch.nn.functional.linear`; if tensors have different dtypes, torch computes it.

    Args:
        rows_read: indices of the output's rows that are read; other rows are undefined. None means
            all rows.
        sums: memory to which the weight's gradient is added; None returns it to autograd.
    """
    # torch also accepts a vector as an input or a weight, and a scalar as a bias
    usual = input.ndim > 1 and weight.ndim == 2 and (bias is None or bias.shape == weight.shape[:1])
    if not usual or input.numel() * len(weight) < MUCH_WORK or is_transformed():
        return torch_linear(input, weight, bias)
    if not (torch.is_grad_enabled() and (input.requires_grad or weight.requires_grad)):
        return _without_gradients(input, weight, bias, rows_read)
    if not simd.are_alike(input, weight, bias):
        return torch_linear(input, weight, bias)
    with torch.autocast("cpu", enabled=False):
        output: torch.Tensor = _Linear.apply(input, weight, bias, rows_read, sums)
    return output


class _Linear(torch.autograd.Function):  # type: ignore[misc]
    """The differentiable function of `linear`."""

    kernel = ""

    @staticmethod
    def forward(
        ctx: Any,
        input: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        chosen: torch.Tensor | None,
        sums: GradientSums | None,
    ) -> torch.Tensor:
        ctx.save_for_backward(input, weight)
        ctx.sums = sums
        if chosen is None:
            return product(input, weight.T, bias)
        rows = product(input.flatten(0, -2)[chosen], weight.T, bias)
        return _at_rows(chosen, rows, input.shape[:-1])

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        input, weight = ctx.saved_tensors
        of_input, of_weight, of_bias, *_ = ctx.needs_input_grad
        if needs_torch(grad_output):
            rows, grad = input.flatten(0, -2), grad_output.reshape(-1, len(weight))
            return (
                grad_output @ weight if of_input else None,
                grad.t() @ rows if of_weight else None,
                grad.sum(0) if of_bias else None,
                None,
                None,
            )
        rows, grad = input.flatten(0, -2), grad_output.resolve_neg().flatten(0, -2)
        chosen = rows_with_gradient(grad)
        if chosen is not None:
            rows, grad = rows[chosen], grad[chosen]
        grad_input = None
        if of_input:
            grad_input = product(grad, weight)
            if chosen is None:
                grad_input = grad_input.view(input.shape)
            else:
                grad_input = _at_rows(chosen, grad_input, input.shape[:-1])
        grad_weight = None
        if of_weight:  # the gradient must have the memory layout of the weight
            in_order, sums = weight.is_contiguous(), unless_hooked(ctx.sums, weight)
            factors = (grad, rows) if in_order else (rows, grad)
            if sums is not None and sums.takes(*factors):
                sums.add_product(*factors)
            else:
                of_factors = product_of_columns(*factors).to(weight.dtype)
                grad_weight = of_factors if in_order else of_factors.T
        return grad_input, grad_weight, _sum_of_rows(grad) if of_bias else None, None, None


def _without_gradients(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    chosen: torch.Tensor | None,
) -> torch.Tensor:
    """Return the output of `linear` in a pass without gradients."""
    # autocast would have to round fp32 values first, as torch's function does
    rounds = torch.is_autocast_enabled("cpu") and input.dtype == torch.float32
    alike = not rounds and simd.are_alike(input, weight, bias)
    rows = input if chosen is None else input.flatten(0, -2)[chosen]
    output = product(rows, weight.T, bias) if alike else torch_linear(rows, weight, bias)
    return output if chosen is None else _at_rows(chosen, output, input.shape[:-1])


def _at_rows(chosen: torch.Tensor, rows: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """Return zeros of shape (*shape, columns), with `rows` at the chosen indices."""
    output = rows.new_zeros(shape.numel(), rows.shape[1]).index_copy_(0, chosen, rows)
    return output.view(*shape, -1)


def _sum_of_rows(grad: torch.Tensor) -> torch.Tensor:
    if grad.is_contiguous() and simd.is_fit(grad):
        return simd.column_sums(grad).to(grad.dtype)
    return grad.sum(0)


def rows_with_gradient(grad: torch.Tensor) -> torch.Tensor | None:
    """Return the indices of the rows with a nonzero element, or None if most rows have one.

    Args:
        grad: shape (rows, columns).
    """
    few = grad[LOOKED_AT % len(grad)]
    if _is_some(few).sum() > MANY_ROWS * len(few):
        return None
    (chosen,) = _is_some(grad).nonzero(as_tuple=True)
    return chosen if len(chosen) <= MANY_ROWS * len(grad) else None


def _is_some(rows: torch.Tensor) -> torch.Tensor:
    """Return True for each row with any bit set; in bf16, torch's `any` takes 20 times as long."""
    bits = rows.view(INTEGERS[rows.itemsize])
    return (bits.amax(1) != 0).logical_or_(bits.amin(1) != 0)
