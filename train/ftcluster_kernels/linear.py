"""Linear layers that leave out rows, with a frozen weight in NF4, and with low-rank adapters.

Linear layers that leave out rows: those that nothing reads, and backward without a gradient.

A classifier reads one token of each sample, so in its last layer queries, the attention's output
and the two layers behind it have a gradient in one row of each sample. Rows of padding have none in
any layer, those of a prompt none in the last one. Products with rows of zeros are zeros, so the
result is the same to rounding.

Linear layers whose frozen weight is in NF4 (QLoRA, Dettmers et al. 2023), by bitsandbytes.

Such a weight is a parameter of bytes with two values each. Its values are computed anew for each
product, so only those of one layer are in memory.

Linear layers with low-rank adapters (LoRA, Hu et al. 2021): W x + scale * B A x.

As one function with a backward pass of its own: what the adapter adds is added by the matrix
product that computes it, and nothing of the layer's output is copied.
"""

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from ftcluster_kernels import simd
from ftcluster_kernels.derivatives import by_torch, needs_torch
from ftcluster_kernels.gradient_sums import sums_of
from ftcluster_kernels.private_torch import is_transformed
from ftcluster_kernels.products import (
    MULTIPLE,
    product,
    product_of_columns,
    product_with_adapter,
    takes_adapter,
    torch_linear,
)

MANY_ROWS = 0.75  # of all: with more it costs as much to select them as it saves
MUCH_WORK = 1 << 26  # multiplications of a product: with less, the look at the rows costs more
# rows that are looked at first: a prime apart, so that they are not the same token of each sample
LOOKED_AT = torch.arange(32, dtype=torch.int64, device="cpu") * 7919
INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes


def linear(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    rows_read: torch.Tensor | None = None,
) -> torch.Tensor:
    """As `torch.nn.functional.linear`. Tensors of different dtypes are left to autocast.

    Args:
        rows_read: the numbers of the rows of the output that are read, the others may be anything;
            None: all are.
    """
    learns = torch.is_grad_enabled() and (input.requires_grad or weight.requires_grad)
    # torch also takes a vector as an input or a weight, and one number as a bias
    usual = input.ndim > 1 and weight.ndim == 2 and (bias is None or bias.shape == weight.shape[:1])
    large = usual and input.numel() * len(weight) >= MUCH_WORK
    if not (learns and large and simd.are_alike(input, weight, bias)) or is_transformed():
        return torch_linear(input, weight, bias)
    with torch.autocast("cpu", enabled=False):
        output: torch.Tensor = _Linear.apply(input, weight, bias, rows_read)
    return output


class _Linear(torch.autograd.Function):  # type: ignore[misc]
    """Shapes as those of `linear`."""

    kernel = ""

    @staticmethod
    def forward(
        ctx: Any,
        input: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        chosen: torch.Tensor | None,
    ) -> torch.Tensor:
        ctx.save_for_backward(input, weight)
        if chosen is None:
            return product(input, weight.T, bias)
        rows = product(input.flatten(0, -2)[chosen], weight.T, bias)
        return _at_rows(chosen, rows, input.shape[:-1])

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        input, weight = ctx.saved_tensors
        of_input, of_weight, of_bias, _ = ctx.needs_input_grad
        rows = input.flatten(0, -2)
        if needs_torch(grad_output):
            grad = grad_output.reshape(-1, len(weight))
            return (
                grad_output @ weight if of_input else None,
                grad.t() @ rows if of_weight else None,
                grad.sum(0) if of_bias else None,
                None,
            )
        grad = grad_output.resolve_neg().flatten(0, -2)
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
        if of_weight:  # in the weight's order in memory
            in_order, sums = weight.is_contiguous(), sums_of(weight)
            factors = (grad, rows) if in_order else (rows, grad)
            if sums is not None and sums.takes(*factors):
                sums.add_product(*factors)
            else:
                of_factors = product_of_columns(*factors).to(weight.dtype)
                grad_weight = of_factors if in_order else of_factors.T
        return grad_input, grad_weight, _sum_of_rows(grad) if of_bias else None, None


def _at_rows(chosen: torch.Tensor, rows: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """`rows` at their places in zeros of shape (*shape, columns)."""
    output = rows.new_zeros(shape.numel(), rows.shape[1]).index_copy_(0, chosen, rows)
    return output.view(*shape, -1)


def _sum_of_rows(grad: torch.Tensor) -> torch.Tensor:
    if grad.is_contiguous() and simd.is_fit(grad):
        return simd.column_sums(grad)
    return grad.sum(0)


def rows_with_gradient(grad: torch.Tensor) -> torch.Tensor | None:
    """The numbers of the rows that are not all zeros; None if most rows are not.

    Args:
        grad: shape (rows, columns).
    """
    few = grad[LOOKED_AT % len(grad)]
    if _is_some(few).sum() > MANY_ROWS * len(few):
        return None
    (chosen,) = _is_some(grad).nonzero(as_tuple=True)
    return chosen if len(chosen) <= MANY_ROWS * len(grad) else None


def _is_some(rows: torch.Tensor) -> torch.Tensor:
    """Whether a row has other bits than 0: `any` takes 20 times as long for bf16."""
    bits = rows.view(INTEGERS[rows.itemsize])
    return (bits.amax(1) != 0).logical_or_(bits.amin(1) != 0)


@dataclass(frozen=True)
class Nf4:
    """How a parameter is kept in NF4; it has this as attribute `nf4`.

    Attributes:
        state: bitsandbytes' description of the bytes.
        shape: of the values.
    """

    state: Any
    shape: torch.Size

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the values."""
        dtype: torch.dtype = self.state.dtype
        return dtype


def in_nf4(quantized: torch.Tensor, state: Any) -> torch.nn.Parameter:
    """A frozen parameter of what bitsandbytes has quantized.

    Args:
        state: its `QuantState`.
    """
    weight = torch.nn.Parameter(quantized, requires_grad=False)
    shape, by_block = torch.Size(state.shape), copy.copy(state)
    # with AVX512, bitsandbytes 0.50 takes the wrong factors where blocks go on in the next row
    blocks, rest = divmod(shape.numel(), state.blocksize)
    by_block.shape = torch.Size((1, shape.numel()) if rest else (blocks, state.blocksize))
    weight.nf4 = Nf4(by_block, shape)
    return weight


def dense(weight: torch.Tensor) -> torch.Tensor:
    """The values of a weight, shape (outputs, inputs); itself unless it is in NF4."""
    nf4: Nf4 | None = getattr(weight, "nf4", None)
    if nf4 is None:
        return weight
    from bitsandbytes.functional import dequantize_4bit

    values: torch.Tensor = dequantize_4bit(weight.detach(), nf4.state)
    return values.view(nf4.shape)


def dtype_of(weight: torch.Tensor) -> torch.dtype:
    """The dtype of a weight's values."""
    dtype: torch.dtype = getattr(weight, "nf4", weight).dtype
    return dtype


def shape_of(weight: torch.Tensor) -> torch.Size:
    """The shape of a weight's values."""
    shape: torch.Size = getattr(weight, "nf4", weight).shape
    return shape


def linear_in_nf4(
    input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """As `torch.nn.functional.linear`, with a frozen weight in NF4."""
    input = input.to(dtype_of(weight))
    with torch.autocast("cpu", enabled=False):
        if is_transformed():
            return torch_linear(input, dense(weight), bias)
        output: torch.Tensor = _Nf4Linear.apply(input, weight, bias)
    return output


class _Nf4Linear(torch.autograd.Function):  # type: ignore[misc]
    """The weight and the bias are frozen."""

    kernel = ""

    @staticmethod
    def forward(
        ctx: Any, input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        ctx.weight = weight
        return product(input, dense(weight).T, bias)

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        if needs_torch(grad_output):
            return grad_output @ dense(ctx.weight), None, None
        return product(grad_output, dense(ctx.weight)), None, None


@dataclass(frozen=True)
class Adapter:
    """The adapter of a linear layer, whose weight has it as attribute `adapter`.

    Attributes:
        down: A, shape (rank, inputs).
        up: B, shape (outputs, rank); 0 at first.
        scale: what their product is multiplied by.
        dropout: of the adapter's input.
    """

    down: torch.nn.Parameter
    up: torch.nn.Parameter
    scale: float
    dropout: float = 0.0


def linear_with_adapter(
    input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, adapter: Adapter
) -> torch.Tensor:
    """As `torch.nn.functional.linear`, with what the adapter adds; the weight may be in NF4."""
    # before and after a training the adapter is in fp32
    dtype = dtype_of(weight)
    down, up = adapter.down.to(dtype), adapter.up.to(dtype)
    input = input.to(dtype)
    dropped = adapter.dropout if torch.is_grad_enabled() else 0.0
    with torch.autocast("cpu", enabled=False):
        if dropped or input.ndim < 2 or is_transformed():
            low = functional.linear(functional.dropout(input, dropped) if dropped else input, down)
            plain = linear_in_nf4 if hasattr(weight, "nf4") else functional.linear
            return plain(input, weight, bias) + functional.linear(low, up * adapter.scale)
        output: torch.Tensor = _LowRankLinear.apply(input, weight, bias, down, up, adapter.scale)
    return output


class _LowRankLinear(torch.autograd.Function):  # type: ignore[misc]
    """The weight and the bias are frozen."""

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
    ) -> torch.Tensor:
        flat, right = input.flatten(0, -2), dense(weight).T
        ctx.weight, ctx.scale, ctx.factors = weight, scale, (down, up)
        if takes_adapter(flat, right, bias, down.T, up.T):
            more = -len(down) % MULTIPLE
            down, up = functional.pad(down, (0, 0, 0, more)), functional.pad(up, (0, more))
        output, low = product_with_adapter(flat, right, bias, down.T, up.T, scale)
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
            return of_input, None, None, of_down, of_up, None
        flat, grad = input.flatten(0, -2), grad_output.flatten(0, -2)
        if ctx.needs_input_grad[0]:
            grad_input, grad_low = product_with_adapter(grad, right, None, up, down, ctx.scale)
            grad_input = grad_input.unflatten(0, grad_output.shape[:-1])
        else:
            grad_input, grad_low = None, (grad @ up).mul_(ctx.scale)
        of_down = _to_sums(ctx.factors[0], product_of_columns(flat, grad_low).T)
        of_up = _to_sums(ctx.factors[1], product_of_columns(grad, low))
        return grad_input, None, None, of_down, of_up, None


def _to_sums(weight: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor | None:
    """A gradient with more rows or columns, unless it went to the weight's sums."""
    gradient, sums = gradient[: len(weight), : weight.shape[1]], sums_of(weight)
    if sums is None:
        return gradient.to(weight.dtype)
    sums.add(gradient, 1.0)
    return None
