"""Functions of torch.nn.functional that are replaced, for calls that the kernels are made for.

All others go to torch: evaluations, other devices and types, tracing and compiling.
"""

import functools
import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import functional

from ftcluster_train.fast.notices import say_fp32, say_once
from ftcluster_train.kernels.activations import NAMES, activate, torch_gelu, torch_silu
from ftcluster_train.kernels.attention import Attention, cast_as_torch, torch_attention
from ftcluster_train.kernels.cross_entropy import cross_entropy as many_classes
from ftcluster_train.kernels.dropout import exact_dropout, torch_dropout
from ftcluster_train.kernels.linear import linear as linear_by_rows
from ftcluster_train.kernels.linear import torch_linear
from ftcluster_train.kernels.norm import computes_in_bf16, is_fit, norm, rounded_output
from ftcluster_train.kernels.private_torch import is_transformed

OLDEST_TORCH = (2, 5)  # the first whose attention has enable_gqa
MANY_CLASSES = 4096
torch_cross_entropy = functional.cross_entropy
torch_compile = torch.compile
torch_layer_norm = functional.layer_norm

_attention = Attention(with_dropout=True, exact_dropout=True, say=say_once)
# with dropout torch keeps the whole matrix as well, in fp32
_attention_with_dropout = Attention(True, max_length=sys.maxsize, exact_dropout=True, say=say_once)


def replace_functions() -> bool:
    """Replace them; whether it is the first call, and this torch has what they need."""
    version = tuple(map(int, torch.__version__.split(".")[:2]))
    if version < OLDEST_TORCH:
        say_once(f"needs torch 2.5 or newer, and leaves torch {torch.__version__} as it is")
        return False
    if functional.dropout is dropout:
        return False
    functional.dropout = dropout
    functional.scaled_dot_product_attention = attention
    functional.cross_entropy = cross_entropy
    functional.linear = linear
    functional.gelu = gelu
    functional.silu = silu
    functional.layer_norm = layer_norm
    torch.compile = compile_module
    return True


@functools.wraps(torch_compile)
def compile_module(model: Any = None, *args: Any, **kwargs: Any) -> Any:
    """Replaces `torch.compile`, to say that its code is not ours."""
    if isinstance(getattr(model, "__self__", model), torch.nn.Module):
        say_once("a compiled model is left to torch.compile")
    return torch_compile(model, *args, **kwargs)


def dropout(
    input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> torch.Tensor:
    """Replaces `torch.nn.functional.dropout`."""
    if not training or not _is_plain(input):
        return torch_dropout(input, p, training, inplace)
    _look_at_dtype(input)
    return exact_dropout(input, p, training, inplace)


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Replaces `torch.nn.functional.scaled_dot_product_attention`."""
    options: dict[str, Any] = {
        "attn_mask": attn_mask, "dropout_p": dropout_p, "is_causal": is_causal, "scale": scale,
        "enable_gqa": enable_gqa,
    }  # fmt: skip
    tensors = (query, key, value) if attn_mask is None else (query, key, value, attn_mask)
    if not _is_plain(*tensors):
        return torch_attention(query, key, value, **options)
    chosen = _attention_with_dropout if dropout_p else _attention
    if chosen.is_used(query, key, value, dropout_p):
        _look_at_dtype(query)
    return chosen(query, key, value, **options)


def linear(
    input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """Replaces `torch.nn.functional.linear`."""
    tensors = (input, weight) if bias is None else (input, weight, bias)
    if not torch.is_grad_enabled() or not _is_plain(*tensors):
        return torch_linear(input, weight, bias)
    if computes_in_bf16():
        rounded = rounded_output(input)
        tensors = (input if rounded is None else rounded, *tensors[1:])
    return linear_by_rows(*cast_as_torch(*tensors))


def gelu(input: torch.Tensor, approximate: str = "none") -> torch.Tensor:
    """Replaces `torch.nn.functional.gelu`."""
    if approximate not in NAMES or not torch.is_grad_enabled() or not _is_plain(input):
        return torch_gelu(input, approximate=approximate)
    return activate(NAMES[approximate], input)


def silu(input: torch.Tensor, inplace: bool = False) -> torch.Tensor:
    """Replaces `torch.nn.functional.silu`."""
    if inplace or not torch.is_grad_enabled() or not _is_plain(input):
        return torch_silu(input, inplace)
    return activate("silu", input)


def layer_norm(
    input: torch.Tensor,
    normalized_shape: Sequence[int],
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    eps: float = 1e-5,
) -> torch.Tensor:
    """Replaces `torch.nn.functional.layer_norm`; linear layers take its output in bf16."""
    fits = (
        weight is not None
        and torch.is_grad_enabled()
        and (computes_in_bf16() or not torch.is_autocast_enabled("cpu"))
        and len(normalized_shape) == 1
        and _is_plain(input, weight, *([] if bias is None else [bias]))
        and (input.dtype == torch.float32 or _is_cast(input))
        and is_fit(weight, bias, input.shape[-1])
    )
    if not fits or weight is None:
        return torch_layer_norm(input, normalized_shape, weight, bias, eps)
    return norm(input.float(), weight, bias, eps, centered=True)


def cross_entropy(
    input: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> torch.Tensor:
    """Replaces `torch.nn.functional.cross_entropy`."""
    many = (
        _is_plain(input, target)
        and input.ndim == 2
        and input.shape[1] >= MANY_CLASSES
        and target.shape == input.shape[:1]
        and target.dtype == torch.int64
        and (input.dtype == torch.float32 or _is_cast(input))
    )
    plain = weight is None and size_average is None and reduce is None and not label_smoothing
    if many and plain and reduction in ("mean", "sum", "none"):
        return many_classes(input, target, ignore_index, reduction)
    if many and input.requires_grad:
        say_once("cross entropy with class weights or label smoothing is left to torch")
    return torch_cross_entropy(
        input, target, weight, size_average, ignore_index, reduce, reduction, label_smoothing
    )


def _is_cast(values: torch.Tensor) -> bool:
    """Whether torch's function would compute in fp32."""
    return values.dtype == torch.bfloat16 and bool(torch.is_autocast_enabled("cpu"))


def _is_plain(*tensors: torch.Tensor) -> bool:
    """Whether the kernels can take them: numbers of this CPU, not traced and not compiled."""
    return (
        not torch.compiler.is_compiling()
        and all(
            type(x) in (torch.Tensor, torch.nn.Parameter) and x.device.type == "cpu"
            for x in tensors
        )
        and not torch.jit.is_tracing()
        and not is_transformed()
    )


def _look_at_dtype(values: torch.Tensor) -> None:
    if values.dtype == torch.float32 and not torch.is_autocast_enabled("cpu"):
        say_fp32()
