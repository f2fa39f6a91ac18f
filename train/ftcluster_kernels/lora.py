"""Computes linear layers with low-rank adapters (LoRA, Hu et al. 2021): W x + scale * B A x.

With DoRA (Liu et al. 2024), an adapter also has a trained length for each row of W + scale * B A.

The layer and its adapter are one autograd function. The adapter's matmul adds directly to the
layer's output, which needs no copy of the output.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.nn import functional

from ftcluster_kernels import simd
from ftcluster_kernels.derivatives import by_torch, needs_torch
from ftcluster_kernels.gradient_sums import GradientSums, unless_hooked
from ftcluster_kernels.low_rank_products import (
    GROUP,
    adapter_gradients,
    add_adapter_,
    fits_loops,
)
from ftcluster_kernels.nf4 import Nf4Weight, dense, dtype_of, linear_in_nf4
from ftcluster_kernels.private_torch import is_transformed
from ftcluster_kernels.products import (
    MULTIPLE,
    product,
    product_of_columns,
    product_with_adapter,
    takes_adapter,
    torch_linear,
)

Sums = tuple[GradientSums | None, GradientSums | None]  # for an adapter's A and B


@dataclass(frozen=True)
class Adapter:
    """The low-rank adapter of a linear layer.

    Attributes:
        down: A, shape (rank, inputs).
        up: B, shape (outputs, rank); initially 0.
        scale: factor of B A.
        dropout: dropout probability of the adapter's input.
        magnitude: trained length of each row of the adapted weight (DoRA), shape (outputs,); None
            for LoRA.
    """

    down: torch.nn.Parameter
    up: torch.nn.Parameter
    scale: float
    dropout: float = 0.0
    magnitude: torch.nn.Parameter | None = None


def row_lengths(
    weight: torch.Tensor, down: torch.Tensor, up: torch.Tensor, scale: float
) -> torch.Tensor:
    """Return the length of each row of weight + scale * up @ down, in fp32 and without gradients.

    The function does not compute the adapted weight, which would need as much memory as `weight`.

    Args:
        weight: shape (outputs, inputs), in any dtype or in NF4.
        down, up: shapes (rank, inputs) and (outputs, rank).
    """
    with torch.no_grad(), torch.autocast("cpu", enabled=False):
        weight, down, up = dense(weight), down.float(), up.float()
        squares = torch.linalg.vector_norm(weight, dim=1, dtype=torch.float32).square()
        shared = (up * (weight @ down.to(weight.dtype).T).float()).sum(1)
        added = (up @ (down @ down.T) * up).sum(1)
        squares += 2 * scale * shared + scale**2 * added
        # a row of zeros has length 0; any positive divisor keeps such a row 0
        return squares.clamp_min(torch.finfo(torch.float32).tiny).sqrt()


def row_factors(weight: torch.Tensor, adapter: Adapter) -> torch.Tensor:
    """Return the factor that scales each row of the adapted weight to its magnitude, in fp32.

    Only the magnitude gets a gradient: the lengths of the rows count as constants, as in peft (see
    section 4.3 of the DoRA paper).
    """
    assert adapter.magnitude is not None
    lengths = row_lengths(weight, adapter.down, adapter.up, adapter.scale)
    return adapter.magnitude.float() / lengths


def linear_with_adapter(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    adapter: Adapter,
    sums: Sums = (None, None),
) -> torch.Tensor:
    """Compute `torch.nn.functional.linear` plus the adapter; the weight may be in NF4.

    Args:
        sums: memory to which the gradients of the adapter's A and B are added. A gradient is
            returned to autograd if its sums are None, or if the dtype of A or B differs from the
            weight's dtype.
    """
    if adapter.magnitude is not None:
        return _with_lengths(input, weight, bias, adapter, sums)
    # before and after training, the adapter is in fp32
    dtype = dtype_of(weight)
    factors = adapter.down, adapter.up
    down, up = (factor.to(dtype) for factor in factors)
    sums = (sums[0] if down is factors[0] else None, sums[1] if up is factors[1] else None)
    input = input.to(dtype)
    dropped = adapter.dropout if torch.is_grad_enabled() else 0.0
    with torch.autocast("cpu", enabled=False):
        if dropped or input.ndim < 2 or is_transformed():
            low = functional.linear(functional.dropout(input, dropped) if dropped else input, down)
            plain = linear_in_nf4 if type(weight) is Nf4Weight else functional.linear
            return plain(input, weight, bias) + functional.linear(low, up * adapter.scale)
        output: torch.Tensor = _LowRankLinear.apply(
            input, weight, bias, down, up, adapter.scale, sums
        )
    return output


def _with_lengths(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    adapter: Adapter,
    sums: Sums,
) -> torch.Tensor:
    """Compute a linear layer with a DoRA adapter.

    As in peft, dropout changes the input of all terms except the original weight's term.
    """
    dtype = dtype_of(weight)
    input = input.to(dtype)
    plain = replace(adapter, magnitude=None, dropout=0.0)
    dropped = adapter.dropout if torch.is_grad_enabled() else 0.0
    with torch.autocast("cpu", enabled=False):
        factors = row_factors(weight, adapter)
        changed = functional.dropout(input, dropped) if dropped else input
        output = linear_with_adapter(changed, weight, None, plain, sums).float() * factors
        if dropped:
            matmul = linear_in_nf4 if type(weight) is Nf4Weight else functional.linear
            output = output + (matmul(input, weight, None) - matmul(changed, weight, None))
        return (output if bias is None else output + bias).to(dtype)


class _LowRankLinear(torch.autograd.Function):  # type: ignore[misc]
    """The differentiable function of `linear_with_adapter`; the weight and the bias are frozen."""

    kernel = "low_rank"

    @staticmethod
    def forward(
        ctx: Any,
        input: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        down: torch.Tensor,
        up: torch.Tensor,
        scale: float,
        sums: Sums,
    ) -> torch.Tensor:
        ctx.sums = sums
        flat, right = input.flatten(0, -2), dense(weight).T
        ctx.weight, ctx.scale, ctx.factors = weight, scale, (down, up)
        on_tiles = takes_adapter(flat, right, bias, down.T, up.T)
        ctx.by_loops = not on_tiles and fits_loops(len(down), flat, right, down, up)
        if ctx.by_loops and flat.dtype == torch.bfloat16:
            output = product(flat, right, bias)
            low = add_adapter_(output, flat.contiguous(), down, up, scale)
        else:
            if on_tiles:
                more = -len(down) % MULTIPLE
                down, up = functional.pad(down, (0, 0, 0, more)), functional.pad(up, (0, more))
            output, low = product_with_adapter(flat, right, bias, down.T, up.T, scale)
            if ctx.by_loops:  # in fp32, only the loops of the backward pass are faster than MKL
                low = functional.pad(low, (0, -len(down) % GROUP))
        ctx.save_for_backward(input, down, up, low)
        return output.unflatten(0, input.shape[:-1])

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        input, down, up, low = ctx.saved_tensors
        right = dense(ctx.weight)
        if needs_torch(grad_output):
            of_input, of_down, of_up = by_torch(
                lambda x, down, up: (
                    torch_linear(x, right) + torch_linear(torch_linear(x, down), up) * ctx.scale
                ),
                (input, *ctx.factors),
                grad_output,
            )
            return of_input, None, None, of_down, of_up, None, None
        flat, grad = input.flatten(0, -2), grad_output.flatten(0, -2)
        if ctx.by_loops:
            grad = simd.in_order(grad)
            grad_input = product(grad, right) if ctx.needs_input_grad[0] else None
            of_down, of_up = adapter_gradients(
                grad, flat.contiguous(), low, down, up, ctx.scale, grad_input
            )
        else:
            if ctx.needs_input_grad[0]:
                grad_input, grad_low = product_with_adapter(grad, right, None, up, down, ctx.scale)
            else:
                grad_input, grad_low = None, (grad @ up).mul_(ctx.scale)
            of_down, of_up = product_of_columns(flat, grad_low).T, product_of_columns(grad, low)
        if grad_input is not None:
            grad_input = grad_input.unflatten(0, grad_output.shape[:-1])
        of_down = _to_sums(ctx.sums[0], ctx.factors[0], of_down)
        of_up = _to_sums(ctx.sums[1], ctx.factors[1], of_up)
        return grad_input, None, None, of_down, of_up, None, None


def _to_sums(
    sums: GradientSums | None, weight: torch.Tensor, gradient: torch.Tensor
) -> torch.Tensor | None:
    """Add a gradient without its padding to the weight's sums; without sums, return it."""
    gradient, sums = gradient[: len(weight), : weight.shape[1]], unless_hooked(sums, weight)
    if sums is None:
        return gradient.to(weight.dtype, memory_format=torch.contiguous_format)
    sums.add(gradient, 1.0)
    return None
