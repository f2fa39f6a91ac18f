"""Computes several linear layers of the same input in one matmul, such as query, key and value.

One matmul packs the input once and has longer rows. The gradient of the input is also one matmul,
so the gradients of the layers' inputs need not be added.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch.nn import functional

from ftcluster_kernels import simd
from ftcluster_kernels.derivatives import by_torch, needs_torch
from ftcluster_kernels.gradient_sums import GradientSums, unless_hooked
from ftcluster_kernels.linear import Needed, gradients_of, needs_gradients, takes_layer
from ftcluster_kernels.products import product


def joint_linear(
    input: torch.Tensor,
    weights: Sequence[torch.Tensor],
    biases: Sequence[torch.Tensor],
    sums: Sequence[GradientSums | None],
) -> tuple[torch.Tensor, ...] | None:
    """Return the outputs of linear layers of `input`, as views of one tensor.

    Return None if the layers must be computed separately: the weights or the biases do not follow
    each other in memory, the tensors have different dtypes, nothing needs a gradient, or a matmul
    is too small.

    Args:
        input: shape (..., inputs).
        weights: one for each layer, shape (outputs, inputs).
        biases: one for each layer, shape (outputs,).
        sums: memory to which each weight's gradient is added; None returns it to autograd.
    """
    layers = zip(weights, biases, strict=True)
    if not needs_gradients(input, *weights) or not all(takes_layer(input, w, b) for w, b in layers):
        return None
    if not simd.are_alike(input, *weights, *biases):
        return None
    weight, bias = in_one(weights), in_one(biases)
    if weight is None or bias is None or input.shape[-1] != weight.shape[1]:
        return None
    with torch.autocast("cpu", enabled=False):
        outputs: tuple[torch.Tensor, ...]
        outputs = _JointLinear.apply(input, weight, bias, tuple(sums), *weights, *biases)
    return outputs


class _JointLinear(torch.autograd.Function):  # type: ignore[misc]
    """The differentiable function of `joint_linear`."""

    kernel = ""

    @staticmethod
    def forward(
        ctx: Any,
        input: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor,
        sums: tuple[GradientSums | None, ...],
        *parameters: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        weights = parameters[: len(parameters) // 2]
        ctx.save_for_backward(input, *parameters)
        ctx.sums, ctx.sizes = sums, list(map(len, weights))
        outputs: tuple[torch.Tensor, ...] = product(input, weight.T, bias).split(ctx.sizes, -1)
        return outputs

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        input, *parameters = ctx.saved_tensors
        count = len(ctx.sizes)
        if needs_torch(*grads):
            of_input, *of_parameters = by_torch(
                partial(_by_torch, count), (input, *parameters), *grads
            )
            return of_input, None, None, None, *of_parameters
        weights = parameters[:count]
        weight = in_one(weights)
        if weight is None:  # the parameters were moved after the forward pass
            weight = torch.cat(weights)
        grad = _beside([x.resolve_neg().flatten(0, -2) for x in grads])
        needs = ctx.needs_input_grad
        needed = Needed(needs[0], any(needs[4 : 4 + count]), any(needs[4 + count :]))
        hooked = any(unless_hooked(s, w) is None for s, w in zip(ctx.sums, weights, strict=True))
        sums = None if hooked else _joint_sums(ctx.sums)
        of_input, of_weight, of_bias = gradients_of(grad, input, weight, sums, needed)
        if sums is not None and of_weight is None and needed.weight:
            for of_layer in ctx.sums:
                of_layer.mark_filled()
        parts = (
            [None] * count if whole is None else whole.split(ctx.sizes)
            for whole in (of_weight, of_bias)
        )
        return of_input, None, None, None, *(part for of_kind in parts for part in of_kind)


def _by_torch(
    count: int, input: torch.Tensor, *parameters: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """Return the result of `_JointLinear`, computed by torch."""
    pairs = zip(parameters[:count], parameters[count:], strict=True)
    return tuple(functional.linear(input, weight, bias) for weight, bias in pairs)


def in_one(tensors: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """Return a view of all rows of tensors that follow each other in memory, otherwise None.

    The view has no graph.
    """
    first, place = tensors[0], tensors[0].data_ptr()
    memory = first.untyped_storage().data_ptr()
    for x in tensors:
        alike = x.dtype == first.dtype and x.shape[1:] == first.shape[1:] and x.is_contiguous()
        if not alike or x.data_ptr() != place or x.untyped_storage().data_ptr() != memory:
            return None
        place += x.nbytes
    rows = sum(map(len, tensors))
    return first.detach().as_strided((rows, *first.shape[1:]), first.stride())


def _beside(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return all columns of matrices with equally many rows; without a copy if they are views.

    Args:
        parts: shape (rows, columns of the part).
    """
    columns, first = sum(x.shape[1] for x in parts), parts[0]
    place, memory = first.data_ptr(), first.untyped_storage().data_ptr()
    for x in parts:
        in_place = x.stride() == (columns, 1) and x.data_ptr() == place
        if not in_place or x.untyped_storage().data_ptr() != memory:
            return torch.cat(list(parts), 1)
        place += x.shape[1] * x.itemsize
    return first.as_strided((len(first), columns), (columns, 1))


def _joint_sums(sums: Sequence[GradientSums | None]) -> GradientSums | None:
    """Return sums that contain the memory of all layers' sums; None if that is not possible."""
    layers = [x for x in sums if x is not None]
    if len(layers) < len(sums) or len({(x.dtype, x.filled) for x in layers}) > 1:
        return None
    values = in_one([x.values for x in layers])
    if values is None:
        return None
    joint = GradientSums(values, layers[0].dtype)
    if layers[0].filled:
        joint.mark_filled()
    return joint
