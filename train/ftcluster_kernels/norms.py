"""Computes LayerNorm and RMSNorm in one pass over memory.

If matmuls are computed in bf16, a norm reads fp32 residuals, but the layers after it need bf16. In
training, a norm therefore also writes a bf16 copy of its output in the same pass, see
`RoundedCopies`.
"""

import weakref
from functools import partial
from typing import Any

import torch

from ftcluster_kernels import simd
from ftcluster_kernels.derivatives import by_torch, needs_torch
from ftcluster_kernels.private_torch import is_transformed, version_of


class _Norm(torch.autograd.Function):  # type: ignore[misc]
    """Returns the output in fp32, and its bf16 copy or None."""

    kernel = "norm"

    @staticmethod
    def forward(
        ctx: Any,
        input: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        epsilon: float,
        centered: bool,
        rounds: bool,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        ctx.set_materialize_grads(False)
        output, rounded, means, scales = simd.norm(input, weight, bias, epsilon, centered, rounds)
        ctx.save_for_backward(input, weight, means, scales)
        ctx.has_bias, ctx.setting = bias is not None, (epsilon, centered, rounds)
        return output, rounded

    @staticmethod
    def backward(
        ctx: Any, grad: torch.Tensor | None, rounded_grad: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, ...]:
        if grad is None and rounded_grad is None:
            return None, None, None, None, None, None
        input, weight, means, scales = ctx.saved_tensors
        if needs_torch(grad, rounded_grad):
            bias = None
            if ctx.has_bias:  # gradients do not depend on the bias's elements
                bias = torch.zeros_like(weight).requires_grad_(ctx.needs_input_grad[2])
            formula = partial(_normalized, *ctx.setting)
            return *by_torch(formula, (input, weight, bias), grad, rounded_grad), None, None, None
        of_fp32, of_bf16 = (None if x is None else simd.in_order(x) for x in (grad, rounded_grad))
        of_input, of_weight, of_bias = simd.norm_backward(
            input, weight, of_fp32, of_bf16, means, scales
        )
        return of_input, of_weight, of_bias if ctx.has_bias else None, None, None, None


def _normalized(
    epsilon: float,
    centered: bool,
    rounds: bool,
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the result of `_Norm`, computed by torch."""
    if centered:
        output = torch.layer_norm(input, weight.shape, weight, bias, epsilon)
    else:
        scales = (input.square().mean(-1, keepdim=True) + epsilon).rsqrt()
        output = input * scales * weight
    return output, output.to(torch.bfloat16) if rounds else None


def fits_norm(weight: torch.Tensor, bias: torch.Tensor | None, width: int) -> bool:
    """Return True if `norm` can compute with this weight and bias."""
    parameters = [x for x in (weight, bias) if x is not None]
    fits = all(x.dtype == torch.float32 and x.shape == (width,) for x in parameters)
    return fits and all(map(simd.is_in_memory, parameters)) and simd.is_available()


def computes_in_bf16() -> bool:
    """Return True if autocast makes linear layers compute in bf16."""
    enabled = torch.is_autocast_enabled("cpu")
    return bool(enabled and torch.get_autocast_dtype("cpu") == torch.bfloat16)


def norm(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    epsilon: float,
    centered: bool,
    copies: "RoundedCopies | None" = None,
) -> torch.Tensor:
    """Compute LayerNorm over the last dimension, or RMSNorm if `centered` is False.

    Args:
        input: values in fp32.
        weight, bias: parameters that `fits_norm` accepts; RMSNorm has no bias.
        copies: object that stores a bf16 copy of the output if autocast computes in bf16; None to
            make no copy.

    Returns:
        The output in fp32.
    """
    output: torch.Tensor
    if is_transformed() or not simd.is_in_memory(input):
        output, _ = _normalized(epsilon, centered, False, input, weight, bias)
        return output
    weight, bias = weight.contiguous(), None if bias is None else bias.contiguous()
    rounds = copies is not None and computes_in_bf16()
    output, rounded = _Norm.apply(simd.in_order(input), weight, bias, epsilon, centered, rounds)
    if copies is not None and rounded is not None:
        copies.keep(output, rounded.detach())
    return output


def rms_norm(
    input: torch.Tensor,
    weight: torch.Tensor,
    epsilon: float,
    copies: "RoundedCopies | None" = None,
) -> torch.Tensor:
    """Compute RMSNorm (Zhang and Sennrich 2019) over the last dimension, in fp32.

    Args:
        copies: see `norm`.

    Returns:
        The output in the wider dtype of input and weight.
    """
    output = norm(input.float(), weight.float(), None, epsilon, centered=False, copies=copies)
    dtype = torch.promote_types(input.dtype, weight.dtype)
    # even a conversion without effect would drop the copy, see `KernelMode`
    return output if dtype == torch.float32 else output.to(dtype)


class _Copy:
    """The rounded copy of an output.

    Args:
        values: plain data, without a graph.
    """

    def __init__(self, values: torch.Tensor) -> None:
        self._values = values
        self._of_graph: torch.Tensor | None = None  # the values with a graph to the output

    def read(self, output: torch.Tensor) -> torch.Tensor:
        """Return the copy's values; if the output has a graph, the copy belongs to that graph."""
        if not (output.requires_grad and torch.is_grad_enabled()):
            return self._values
        if self._of_graph is None:
            self._of_graph = _Round.apply(output, self._values)
        return self._of_graph


class _Round(torch.autograd.Function):  # type: ignore[misc]
    """Returns the bf16 copy of an output that the norm has already rounded.

    The gradient goes to the output itself, so that the output's hooks get the gradient.
    """

    kernel = ""

    @staticmethod
    def forward(ctx: Any, output: torch.Tensor, values: torch.Tensor) -> torch.Tensor:  # noqa: ARG004
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:  # noqa: ARG004
        return grad.float(), None


class RoundedCopies:
    """Maps norms' fp32 outputs to their bf16 copies; a copy is freed together with its output.

    Writes to an output through `data` or numpy do not change its version. The owner of the copies
    must therefore call `forget` for each tensor that may be written in this way.
    """

    def __init__(self) -> None:
        # keys: ids of outputs; no other tensor gets the id before the reference's callback has run
        self._copies: dict[int, tuple[weakref.ref[torch.Tensor], _Copy]] = {}

    def __len__(self) -> int:
        return len(self._copies)

    def keep(self, output: torch.Tensor, values: torch.Tensor) -> None:
        """Store `values`, the bf16 copy of an output; `values` have no graph."""
        key, copies = id(output), self._copies
        reference = weakref.ref(output, lambda _: copies.pop(key, None))
        copies[key] = reference, _Copy(values)

    def of(self, output: torch.Tensor) -> torch.Tensor | None:
        """Return the bf16 copy of a norm's output.

        Return None for any other tensor, or if the output was changed or its copy was dropped.
        """
        entry = self._copies.get(id(output))
        if entry is None or output.is_inference() or version_of(output) != 0:
            return None
        return entry[1].read(output)

    def forget(self, tensor: torch.Tensor) -> None:
        """Drop the copy of a tensor, which may be changed without a new version."""
        self._copies.pop(id(tensor), None)
