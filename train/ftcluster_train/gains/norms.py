"""LayerNorm whose gradients of weight and bias are summed in fp32.

torch's kernel for CPUs adds those of bf16 up in bf16, one row after the other, and a long sum
stagnates: of 4,096 rows a third of the bias's gradient is lost (docs/upstream.md). Here the sums
over rows are matrix products, which accumulate in fp32, and which take no longer.
"""

from typing import Any

import torch
from torch.nn import functional


class _LayerNorm(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(
        ctx: Any, rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, eps: float
    ) -> torch.Tensor:
        # with weight and bias in fp32 torch keeps mean and deviation in fp32 as well
        wide = None if bias is None else bias.float()
        output, mean, rstd = torch.native_layer_norm(
            rows, weight.shape, weight.float(), wide, eps
        )
        ctx.save_for_backward(rows, weight, mean, rstd)
        found: torch.Tensor = output
        return found

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        rows, weight, mean, rstd = ctx.saved_tensors
        of_rows, of_weight, of_bias = ctx.needs_input_grad[:3]
        gradient = gradient.contiguous()
        grad_rows = grad_weight = grad_bias = None
        if of_rows:
            grad_rows, _, _ = torch.ops.aten.native_layer_norm_backward(
                gradient, rows, weight.shape, mean, rstd, weight.float(), None,
                [True, False, False],
            )  # fmt: skip
        if of_weight or of_bias:
            rounded = mean.to(rows.dtype)
            # what the mean loses by rounding times 1 / deviation, and ones
            scales = torch.cat([(rounded - mean) * rstd, torch.ones_like(rstd)], 1)
            lost, grad_bias = scales.to(rows.dtype).T @ gradient
            centred = (rows - rounded).mul_(gradient)
            grad_weight = (rstd.to(rows.dtype).T @ centred)[0] + lost
        return grad_rows, grad_weight, grad_bias if of_bias else None, None


def layer_norm(
    input: torch.Tensor,
    normalized_shape: list[int],
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    eps: float = 1e-5,
) -> torch.Tensor:
    """Takes the place of `torch.nn.functional.layer_norm`.

    Weights in bf16 over an input in fp32, as some models keep their residuals, are taken as fp32.
    """
    if weight is None or weight.dtype != torch.bfloat16:
        return functional.layer_norm(input, normalized_shape, weight, bias, eps)
    if input.dtype != torch.bfloat16:
        wide = None if bias is None else bias.to(input.dtype)
        return functional.layer_norm(input, normalized_shape, weight.to(input.dtype), wide, eps)
    rows = input.reshape(-1, weight.numel())
    wide = None if bias is None else bias.flatten()
    found: torch.Tensor = _LayerNorm.apply(rows, weight.flatten(), wide, eps)
    return found.view(input.shape)
