"""Entries for users' scripts: functions that are replaced in the whole process.

Unsupported calls are left to torch: evaluation, other devices and dtypes, tracing and compiling.
"""

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.nn import functional

from ftcluster_kernels.cross_entropy import cross_entropy
from ftcluster_kernels.linear import linear
from ftcluster_kernels.norms import computes_in_bf16, fits_norm, norm
from ftcluster_kernels.private_torch import script_as
from ftcluster_kernels.products import torch_linear
from ftcluster_train.patching.attention import Attention, cast_as_torch
from ftcluster_train.patching.fp32_residuals import torch_layer_norm
from ftcluster_train.patching.fused_steps import fuse_steps
from ftcluster_train.patching.plain_calls import Plain
from ftcluster_train.patching.registry import (
    FunctionPatch,
    keep_out_of_pickles,
    report_once,
    suggest_bf16,
)
from ftcluster_train.patching.shared_entries import EXACT_DROPOUT, GELU, SILU
from ftcluster_train.patching.skipped_rows import rows_read

OLDEST_TORCH = (2, 5)  # the first version of torch whose attention has enable_gqa
MANY_CLASSES = 4096
FLOATS = (torch.float32, torch.bfloat16)
torch_cross_entropy = functional.cross_entropy


def _of_script(patch: FunctionPatch, plain: Plain, says_fp32: bool = False) -> FunctionPatch:
    """Return an entry that is limited to ordinary calls.

    Args:
        plain: calls that the entry's guard supports; other calls are left to torch.
        says_fp32: True to report for training calls in fp32 that bf16 would be faster.
    """

    @functools.wraps(patch.guard)
    def guard(*args: Any, **kwargs: Any) -> str | None:
        if not plain.allows(args, kwargs):
            return ""
        why_not = patch.guard(*args, **kwargs)
        if says_fp32 and why_not != "" and not torch.is_autocast_enabled("cpu"):
            first = args[0] if args else kwargs[plain.tensors[0]]
            if first.dtype == torch.float32:
                suggest_bf16()
        return why_not

    return replace(patch, guard=guard)


def _is_linear(
    input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> str | None:
    """Accept matrices as weights and vectors as biases, in fp32 or bf16."""
    fits = (
        input.ndim > 1
        and weight.ndim == 2
        and input.shape[-1] == weight.shape[1]
        and (bias is None or bias.shape == weight.shape[:1])
        and all(x is None or x.dtype in FLOATS for x in (input, weight, bias))
    )
    return None if fits else ""


def _linear(
    input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    input, weight = cast_as_torch(input, weight)
    bias = None if bias is None else cast_as_torch(bias)[0]
    return linear(input, weight, bias, rows_read(input))


def _is_cast(values: torch.Tensor) -> bool:
    """Return True if torch's function would cast the values to fp32."""
    return values.dtype == torch.bfloat16 and bool(torch.is_autocast_enabled("cpu"))


def _is_layer_norm(
    input: torch.Tensor,
    normalized_shape: Sequence[int],
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    eps: float = 1e-5,  # noqa: ARG001 - has torch's arguments
) -> str | None:
    """Accept norms over the last dimension that have a weight and compute in fp32."""
    fits = (
        weight is not None
        and (computes_in_bf16() or not torch.is_autocast_enabled("cpu"))
        and input.shape[-1:] == tuple(normalized_shape)
        and (input.dtype == torch.float32 or _is_cast(input))
        and fits_norm(weight, bias, input.shape[-1])
    )
    return None if fits else ""


def _layer_norm(
    input: torch.Tensor,
    normalized_shape: Sequence[int],  # noqa: ARG001 - has torch's arguments
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    eps: float = 1e-5,
) -> torch.Tensor:
    """Compute torch's LayerNorm, which computes in fp32 and returns the input's dtype."""
    return norm(input.float(), weight, bias, eps, centered=True).to(input.dtype)


def _is_cross_entropy(
    input: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,  # noqa: ARG001 - has torch's arguments
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> str | None:
    """Accept 4,096 or more classes, without class weights and label smoothing."""
    if not (
        input.ndim == 2
        and input.shape[1] >= MANY_CLASSES
        and target.shape == input.shape[:1]
        and target.dtype == torch.int64
        and (input.dtype == torch.float32 or _is_cast(input))
    ):
        return ""
    plain = weight is None and size_average is None and reduce is None and not label_smoothing
    if plain and reduction in ("mean", "sum", "none"):
        return None
    why_not = "torch computes the cross entropy if it has class weights or label smoothing"
    return why_not if input.requires_grad else ""


def _cross_entropy(
    input: torch.Tensor,
    target: torch.Tensor,
    ignore_index: int = -100,
    reduction: str = "mean",
    **_: Any,
) -> torch.Tensor:
    return cross_entropy(input, target, ignore_index, reduction)


def _is_compiled(model: Any = None, *_: Any, **__: Any) -> str:
    """Accept no call, because torch.compile is not replaced; return the notice for users."""
    is_model = isinstance(getattr(model, "__self__", model), torch.nn.Module)
    return "a compiled model runs the code of torch.compile, not our kernels" if is_model else ""


_attention = Attention(with_dropout=True, exact_dropout=True, longer_with_dropout=True)
SCRIPT_FUNCTIONS = (
    _of_script(EXACT_DROPOUT, Plain(("input",), without_graph=True), says_fp32=True),
    _of_script(
        _attention.patch(),
        Plain(("query", "key", "value"), {3: "attn_mask"}, without_graph=True),
        says_fp32=True,
    ),
    _of_script(
        FunctionPatch(functional, torch_cross_entropy, _is_cross_entropy, _cross_entropy),
        Plain(("input", "target"), {2: "weight"}, without_graph=True),
    ),
    _of_script(
        FunctionPatch(functional, torch_linear, _is_linear, _linear),
        Plain(("input", "weight"), {2: "bias"}),
    ),
    _of_script(GELU, Plain(("input",))),
    _of_script(SILU, Plain(("input",))),
    _of_script(
        FunctionPatch(functional, torch_layer_norm, _is_layer_norm, _layer_norm),
        Plain(("input",), {2: "weight", 3: "bias"}),
    ),
    # the guard accepts no call; it only reports that compiled code does not use our kernels
    FunctionPatch(torch, torch.compile, _is_compiled, torch.compile),
)
_replacements = [(patch, patch.function(report_once)) for patch in SCRIPT_FUNCTIONS]


def attention(*args: Any, **kwargs: Any) -> torch.Tensor:
    """Replace `torch.nn.functional.scaled_dot_product_attention`."""
    output: torch.Tensor = _replacements[1][1](*args, **kwargs)
    return output


def replace_functions() -> bool:
    """Replace torch's functions by SCRIPT_FUNCTIONS in the whole process.

    Returns:
        True at the first call if this version of torch is supported, otherwise False.
    """
    version = tuple(map(int, torch.__version__.split(".")[:2]))
    if version < OLDEST_TORCH:
        report_once(
            f"the kernels need torch 2.5 or newer, so torch {torch.__version__} keeps its functions"
        )
        return False
    if functional.dropout is _replacements[0][1]:
        return False
    for patch, function in _replacements:
        setattr(patch.owner, patch.original.__name__, function)
        if patch.owner is functional:
            script_as(function, patch.original)
    fuse_steps()
    keep_out_of_pickles()
    return True
