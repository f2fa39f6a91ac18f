"""LayerNorm and RMSNorm in one pass over memory.

Where products are computed in bf16, residuals are fp32 and the layers behind a norm want bf16. So
its output is rounded where it is computed, and in the backward pass it adds up the gradients of
both.
"""

from typing import Any

import torch
from torch.autograd.function import once_differentiable

from ftcluster_train.kernels import simd
from ftcluster_train.kernels.private_torch import version_of


class _Norm(torch.autograd.Function):  # type: ignore[misc]
    """Returns the output in fp32, and in bf16 or None."""

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
        ctx.has_bias = bias is not None
        return output, rounded

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(
        ctx: Any, grad: torch.Tensor | None, rounded_grad: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, ...]:
        if grad is None and rounded_grad is None:
            return None, None, None, None, None, None
        input, weight, means, scales = ctx.saved_tensors
        of_fp32, of_bf16 = (None if x is None else x.contiguous() for x in (grad, rounded_grad))
        of_input, of_weight, of_bias = simd.norm_backward(
            input, weight, of_fp32, of_bf16, means, scales
        )
        return of_input, of_weight, of_bias if ctx.has_bias else None, None, None, None


def is_fit(weight: torch.Tensor, bias: torch.Tensor | None, width: int) -> bool:
    """Whether `norm` can compute with them."""
    given = [x for x in (weight, bias) if x is not None]
    fits = all(x.dtype == torch.float32 and x.shape == (width,) for x in given)
    return fits and simd.is_available()


def computes_in_bf16() -> bool:
    """Whether linear layers do, under autocast."""
    enabled = torch.is_autocast_enabled("cpu")
    return bool(enabled and torch.get_autocast_dtype("cpu") == torch.bfloat16)


def norm(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    epsilon: float,
    centered: bool,
) -> torch.Tensor:
    """LayerNorm over the last dimension, or RMSNorm where it is not centered.

    Args:
        input: fp32.
        weight, bias: those that are fit; the last one of LayerNorm only.

    Returns:
        fp32; `rounded_output` has the same in bf16, if that is what products are computed in.
    """
    weight, bias = weight.contiguous(), None if bias is None else bias.contiguous()
    output: torch.Tensor
    output, output.rounded = _Norm.apply(
        input.contiguous(), weight, bias, epsilon, centered, computes_in_bf16()
    )
    return output


def rms_norm(input: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    """RMSNorm (Zhang and Sennrich 2019) over the last dimension, computed in fp32.

    Returns:
        As `weight * input` would be, in the wider one of their dtypes.
    """
    output = norm(input.float(), weight.float(), None, epsilon, centered=False)
    return output.to(torch.promote_types(input.dtype, weight.dtype))


def rounded_output(output: torch.Tensor) -> torch.Tensor | None:
    """The output of a norm in bf16; None of any other tensor, or where it was changed in place."""
    rounded: torch.Tensor | None = getattr(output, "rounded", None)
    return rounded if not output.is_inference() and version_of(output) == 0 else None
