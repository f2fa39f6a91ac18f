"""transformers' function of rotary positions, where a model's modules call it."""

import inspect
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from ftcluster_train.kernels import simd
from ftcluster_train.kernels.rotary import Turned, rotary
from ftcluster_train.patching.registry import FunctionPatch, ObjectPatch, computes_same

NAME = "apply_rotary_pos_emb"  # of the function in the modules of transformers' models
PARAMETERS = ["q", "k", "cos", "sin", "unsqueeze_dim"]


def _rotary_functions(model: nn.Module) -> Iterator[FunctionPatch]:
    """Functions of the modules' files that have this name and compute the same."""
    if not simd.is_available():
        return
    for name in sorted({type(module).__module__ for module in model.modules()}):
        module = sys.modules[name]
        function = getattr(module, NAME, None)
        if function is None or hasattr(function, "__wrapped__"):
            continue
        if list(inspect.signature(function).parameters) == PARAMETERS and _is_rotary(function):
            yield FunctionPatch(module, function, _fits, _rotary)


def _replace(patch: FunctionPatch) -> None:
    setattr(patch.owner, NAME, patch.function())


ROTARY_POSITIONS = ObjectPatch(_rotary_functions, _replace)


def _rotary(
    q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *_: Any, **__: Any
) -> Turned:
    return rotary(q, k, cos, sin)


def _fits(
    q: torch.Tensor,
    k: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,  # noqa: ARG001 - has the function's arguments
    unsqueeze_dim: int = 1,
) -> str | None:
    """None if attention will want results of the dtype of the values, and they can be computed."""
    in_bf16 = bool(torch.is_autocast_enabled("cpu"))
    dtype = torch.bfloat16 if in_bf16 else torch.float32
    fits = (
        unsqueeze_dim == 1
        and not cos.requires_grad
        and cos.dtype == torch.float32
        and cos.ndim == 3
        and all(
            values.dtype == dtype
            and values.ndim == 4
            and cos.shape[0] in (1, values.shape[0])
            and cos.shape[1:] == values.shape[2:]
            and values.shape[3] % 2 == 0
            for values in (q, k)
        )
    )
    return None if fits else ""


def _is_rotary(function: Callable[..., Turned]) -> bool:
    values = torch.linspace(-2, 3, 96).sin().bfloat16()
    query, key = values.view(1, 2, 6, 8), values[:48].view(1, 1, 6, 8)
    angles = torch.linspace(0, 3, 24).view(1, 6, 4).repeat(1, 1, 2)
    same: bool = computes_same(
        lambda *inputs: torch.cat(function(*inputs), 1).float(),
        lambda *inputs: torch.cat(rotary(*inputs), 1).float(),
        query, key, angles.cos(), angles.sin(), rtol=1e-2, atol=1e-3,
    )  # fmt: skip
    return same
