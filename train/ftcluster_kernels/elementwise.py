"""Activations, dropout, norms and rotary positions, each in one pass over memory.

Activations: GELU, its tanh approximation and SiLU as one loop, also times what a gated MLP
multiplies by.

Dropout with a generator that all threads of a rank compute together.

torch draws one number for each element, on one thread (`bernoulli_`). Here word k of a mask is
SplitMix64's output for counter k (Steele, Lea and Flood 2014, "Fast splittable pseudorandom number
generators"), so a mask is elementwise arithmetic, and each word decides on four elements. Nothing
is kept for the backward pass, which draws the mask again.

LayerNorm and RMSNorm in one pass over memory.

Where products are computed in bf16, residuals are fp32 and the layers behind a norm want bf16. So
a training has a norm round its output where it computes it, see `rounded_output`.

Rotary positions (Su et al. 2021) as one loop.

transformers multiplies, swaps and adds in eight passes, in fp32; attention then rounds the result.
"""

import threading
from functools import partial
from typing import Any

import torch
from torch.nn import functional

from ftcluster_kernels import simd
from ftcluster_kernels.derivatives import by_torch, needs_torch
from ftcluster_kernels.private_torch import has_memory, is_transformed, version_of
from ftcluster_kernels.simd import Drop

torch_gelu = functional.gelu
torch_silu = functional.silu
TORCH = {
    "gelu": torch_gelu,
    "tanh_gelu": partial(torch_gelu, approximate="tanh"),
    "silu": torch_silu,
}
DROP_LEVELS = 1 << 16  # steps in which a probability can be given
MOST_DROPPED = 1 - 1 / DROP_LEVELS  # the largest probability


class _Activation(torch.autograd.Function):  # type: ignore[misc]
    """factor * activation(input); all contiguous, of the same shape and dtype."""

    kernel = "activations"

    @staticmethod
    def forward(
        ctx: Any, name: str, input: torch.Tensor, factor: torch.Tensor | None
    ) -> torch.Tensor:
        ctx.kind = name
        ctx.save_for_backward(input, factor)
        return simd.activation(name, input, factor)

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        input, factor = ctx.saved_tensors
        if needs_torch(grad_output):
            return None, *by_torch(partial(_activated, ctx.kind), (input, factor), grad_output)
        grad_output = simd.in_order(grad_output)
        return None, *simd.activation_backward(ctx.kind, grad_output, input, factor)


def _activated(name: str, input: torch.Tensor, factor: torch.Tensor | None) -> torch.Tensor:
    """Return what the loop returns, by torch."""
    output: torch.Tensor = TORCH[name](input.float())
    return (output if factor is None else output * factor).to(input.dtype)


def activate(name: str, input: torch.Tensor, factor: torch.Tensor | None = None) -> torch.Tensor:
    """An activation's output, times a factor of the same shape, rounded once.

    Args:
        name: gelu, tanh_gelu or silu.
    """
    same_shape = factor is None or factor.shape == input.shape
    if not same_shape or is_transformed() or not simd.is_fit(input, factor):
        output: torch.Tensor = TORCH[name](input)
        return output if factor is None else output * factor
    factor = None if factor is None else factor.contiguous()
    activated: torch.Tensor = _Activation.apply(name, input.contiguous(), factor)
    return activated


def drop_of(p: float, seed: int) -> Drop:
    """Which elements dropout drops: each one with a probability near `p`.

    The probability is the one for which bf16 has the scale 1 / (1 - p) exactly, so that the mean of
    the mask is 1: 0.0986 for 0.1. torch rounds the scale instead, and its mean is off by as much.
    Below 0.004 the nearest scale is 1, and the probability is `p`.

    Args:
        p: from 0 to MOST.
        seed: any 64 bits.
    """
    scale = float(torch.tensor(1 / (1 - p), dtype=torch.bfloat16, device="cpu"))
    return _drop((1 - 1 / scale) or p, scale, seed)


def exact_drop_of(p: float, seed: int) -> Drop:
    """As `drop_of`, but with the probability `p` itself, and the scale 1."""
    return _drop(p, 1.0, seed)


def _drop(probability: float, scale: float, seed: int) -> Drop:
    """The probability is in steps."""
    return Drop(seed, round(probability * DROP_LEVELS) - DROP_LEVELS // 2, scale)


class _Dropout(torch.autograd.Function):  # type: ignore[misc]
    kernel = "dropout"

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, drop: Drop) -> torch.Tensor:
        ctx.drop = drop
        return simd.dropout(values, drop)

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor, None]:
        if is_transformed() or not has_memory(grad_output):
            mask = simd.mask_of(ctx.drop, *grad_output.shape)
            return (grad_output * mask).to(grad_output.dtype), None
        return _Dropout.apply(grad_output, ctx.drop), None


def dropout(values: torch.Tensor, p: float, exact: bool = False) -> torch.Tensor:
    """Each element is 0 or the scale times itself.

    The mask depends on torch's default generator, as that of torch's dropout, so gradient
    checkpointing draws the same one again.

    Args:
        values: those that `simd.is_fit` takes.
        p: above 0, at most MOST.
        exact: whether the probability is `p`, and the scale as exact as torch's.
    """
    if is_transformed() or not simd.is_fit(values):
        output: torch.Tensor = torch.dropout(values, p, True)
        return output
    seed = draw_seed()
    drop = exact_drop_of(p, seed)._replace(scale=1 / (1 - p)) if exact else drop_of(p, seed)
    dropped: torch.Tensor = _Dropout.apply(values, drop)
    return dropped


def draw_seed() -> int:
    """64 bits from torch's default generator."""
    return int(torch.empty((), dtype=torch.int64, device="cpu").random_(-(1 << 63), None).item())


class _Norm(torch.autograd.Function):  # type: ignore[misc]
    """Returns the output in fp32, and in bf16 or None."""

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
            if ctx.has_bias:  # its elements do not matter to gradients
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
    """Return what `_Norm` returns, by torch."""
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
        fp32. `rounded_output` returns a copy in bf16 while `copies.wanted` is set and autocast
        computes in bf16.
    """
    output: torch.Tensor
    if is_transformed() or not simd.is_in_memory(input):
        output, _ = _normalized(epsilon, centered, False, input, weight, bias)
        return output
    weight, bias = weight.contiguous(), None if bias is None else bias.contiguous()
    rounds = copies.wanted and computes_in_bf16()
    output, rounded = _Norm.apply(simd.in_order(input), weight, bias, epsilon, centered, rounds)
    if rounded is not None:
        output.rounded = _Copy(rounded.detach())
    return output


def rms_norm(input: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    """RMSNorm (Zhang and Sennrich 2019) over the last dimension, computed in fp32.

    Returns:
        As `weight * input` would be, in the wider one of their dtypes.
    """
    output = norm(input.float(), weight.float(), None, epsilon, centered=False)
    return output.to(torch.promote_types(input.dtype, weight.dtype))


class _Copies(threading.local):
    """The state of a thread.

    Attributes:
        wanted: True while norms keep a copy of their output in bf16. Writes to an output through
            `data` or numpy do not change its version, so whoever sets this calls `forget_copy` for
            each tensor that such a write may reach.
    """

    wanted = False


copies = _Copies()


class _Copy:
    """The rounded copy of an output.

    Attributes:
        values: plain data, without a graph.
        of_graph: the same values as a function of the output; None until a layer reads them.
    """

    def __init__(self, values: torch.Tensor) -> None:
        self.values = values
        self.of_graph: torch.Tensor | None = None


class _Round(torch.autograd.Function):  # type: ignore[misc]
    """Rounds an output to bf16, whose rounded values exist already.

    The gradient goes to the output itself, so that its hooks see it.
    """

    @staticmethod
    def forward(ctx: Any, output: torch.Tensor, values: torch.Tensor) -> torch.Tensor:  # noqa: ARG004
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:  # noqa: ARG004
        return grad.float(), None


def rounded_output(output: torch.Tensor) -> torch.Tensor | None:
    """Return the output of a norm in bf16.

    None of any other tensor, and where the output was changed or its copy was forgotten.
    """
    copy: _Copy | None = getattr(output, "rounded", None)
    if copy is None or output.is_inference() or version_of(output) != 0:
        return None
    if not (output.requires_grad and torch.is_grad_enabled()):
        return copy.values
    if copy.of_graph is None:
        copy.of_graph = _Round.apply(output, copy.values)
    return copy.of_graph


def forget_copy(tensor: torch.Tensor) -> None:
    """Drop the rounded copy of a tensor, which may be changed without a new version."""
    if getattr(tensor, "rounded", None) is not None:
        tensor.rounded = None


Turned = tuple[torch.Tensor, torch.Tensor]


class _Rotary(torch.autograd.Function):  # type: ignore[misc]
    """Shapes (batch, heads, tokens, size), and (1 or batch, tokens, size) of cosines and sines."""

    kernel = "rotary"

    @staticmethod
    def forward(
        ctx: Any, values: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor
    ) -> torch.Tensor:
        ctx.save_for_backward(cosines, sines)
        return _turn(values, cosines, sines, back=False)

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        cosines, sines = ctx.saved_tensors
        if needs_torch(grad_output):  # the transposed matrix
            cosines, sines = cosines.unsqueeze(1), sines.unsqueeze(1)
            low, high = (grad_output * sines).chunk(2, -1)
            turned = grad_output * cosines + torch.cat((high, -low), -1)
            return turned.to(grad_output.dtype), None, None
        return _turn(grad_output, cosines, sines, back=True), None, None


def _turn(
    values: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor, back: bool
) -> torch.Tensor:
    """Tokens are the outer dimension in memory, as before a model has split the heads."""
    by_token = simd.in_order(values.transpose(1, 2))
    return simd.rotary(by_token, cosines, sines, back).transpose(1, 2)


def rotary(
    query: torch.Tensor, key: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor
) -> Turned:
    """Queries and keys, turned by the positions of their tokens."""
    if is_transformed():
        return _turned(query, cosines, sines), _turned(key, cosines, sines)
    angles = (simd.in_order(cosines), simd.in_order(sines))
    return _Rotary.apply(query, *angles), _Rotary.apply(key, *angles)


def _turned(values: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor) -> torch.Tensor:
    """Return what `_Rotary` returns, by torch."""
    cosines, sines = cosines.unsqueeze(1), sines.unsqueeze(1)
    low, high = values.chunk(2, -1)
    return (values * cosines + torch.cat((-high, low), -1) * sines).to(values.dtype)
