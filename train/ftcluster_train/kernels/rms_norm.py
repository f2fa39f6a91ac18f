"""RMSNorm (Zhang and Sennrich 2019) as one function, with a backward pass of its own.

transformers computes it as six functions. Their backward passes read and write values of all tokens
a dozen times; here it takes five times, of rows that stay in the cache.
"""

from typing import Any

import torch
from torch.autograd.function import once_differentiable

from ftcluster_train.kernels.norm import is_fit, norm

ELEMENTS = 1 << 18  # of the rows that are computed together: 1 MB in fp32


class _RmsNorm(torch.autograd.Function):  # type: ignore[misc]
    """weight * input / sqrt(mean(input^2) + epsilon), computed in fp32."""

    @staticmethod
    def forward(
        ctx: Any, input: torch.Tensor, weight: torch.Tensor, epsilon: float
    ) -> torch.Tensor:
        rows, factors = input.flatten(0, -2).float(), weight.float()
        scale = torch.linalg.vector_norm(rows, dim=-1, keepdim=True)
        scale.square_().div_(rows.shape[1]).add_(epsilon).rsqrt_()
        output = torch.empty_like(rows)
        for part in _parts(rows):
            torch.mul(rows[part], scale[part], out=output[part]).mul_(factors)
        ctx.save_for_backward(input, weight, scale)
        return output.view(input.shape).to(torch.promote_types(input.dtype, weight.dtype))

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(
        ctx: Any, grad_output: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor | None, None]:
        input, weight, scale = ctx.saved_tensors
        rows, factors = input.flatten(0, -2).float(), weight.float()
        grads = grad_output.flatten(0, -2).float()
        grad_input = torch.empty_like(rows)
        grad_weight = torch.zeros_like(factors) if ctx.needs_input_grad[1] else None
        for part in _parts(rows):
            products = grads[part] * rows[part]
            # how much a row's own length changes the loss
            along = torch.mv(products, factors).unsqueeze_(1).mul_(scale[part].square())
            torch.mul(grads[part], factors, out=grad_input[part])
            grad_input[part].addcmul_(rows[part], along.div_(-rows.shape[1])).mul_(scale[part])
            if grad_weight is not None:
                grad_weight.addmv_(products.T, scale[part].squeeze(1))
        if grad_weight is not None:
            grad_weight = grad_weight.to(weight.dtype)
        return grad_input.view(input.shape).to(input.dtype), grad_weight, None


def _parts(rows: torch.Tensor) -> list[slice]:
    size = max(ELEMENTS // rows.shape[1], 1)
    return [slice(begin, begin + size) for begin in range(0, len(rows), size)]


def rms_norm(input: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    """The norm over the last dimension.

    Returns:
        As `weight * input` would be, in the wider one of their dtypes.
    """
    if is_fit(weight, None, input.shape[-1]):
        return norm(input.float(), weight, None, epsilon, centered=False)
    with torch.autocast("cpu", enabled=False):
        output: torch.Tensor = _RmsNorm.apply(input, weight, epsilon)
    return output
