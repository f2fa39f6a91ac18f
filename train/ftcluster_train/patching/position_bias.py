"""Keeps a model's position bias and its padding mask separate, see `BiasedMask`.

transformers has one function that joins both for torch's attention. It is replaced for all models
of a process, because every function of torch still gets the joined mask.
"""

import inspect
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from ftcluster_kernels.biased_mask import biased_mask
from ftcluster_kernels.private_torch import is_transformed
from ftcluster_train.patching.registry import FunctionPatch, ObjectPatch, computes_same

MODULE, FUNCTION = "transformers.integrations.sdpa_attention", "create_position_bias_mask"
PARAMETERS = ["position_bias", "attention_mask", "is_causal", "query", "key"]


def _is_separable(
    position_bias: torch.Tensor,
    attention_mask: torch.Tensor | None,
    is_causal: bool,  # noqa: ARG001 - has the function's arguments
    query: torch.Tensor,  # noqa: ARG001
    key: torch.Tensor,  # noqa: ARG001
) -> str | None:
    """Accept boolean masks of four dimensions, unless torch must see each operation."""
    fits = (
        attention_mask is not None
        and attention_mask.dtype == torch.bool
        and position_bias.ndim == attention_mask.ndim == 4
        and type(attention_mask) is torch.Tensor
        and not (is_transformed() or torch.compiler.is_compiling() or torch.jit.is_tracing())
    )
    return None if fits else ""


def _separate(
    position_bias: torch.Tensor,
    attention_mask: torch.Tensor,
    is_causal: bool,  # noqa: ARG001 - has the function's arguments
    query: torch.Tensor,  # noqa: ARG001
    key: torch.Tensor,
) -> torch.Tensor:
    return biased_mask(position_bias, attention_mask, torch.finfo(key.dtype).min)


def _functions(_: nn.Module) -> Iterator[FunctionPatch]:
    """Yield transformers' function, if it exists and computes what `BiasedMask` expects."""
    module = sys.modules.get(MODULE)
    function = getattr(module, FUNCTION, None)
    if function is None or hasattr(function, "__wrapped__"):
        return
    if list(inspect.signature(function).parameters) == PARAMETERS and _is_known(function):
        yield FunctionPatch(module, function, _is_separable, _separate)


def _is_known(function: Callable[..., torch.Tensor]) -> bool:
    bias = torch.linspace(-2, 3, 24, dtype=torch.float32, device="cpu").view(1, 2, 3, 4)
    seen = torch.arange(4, dtype=torch.int64, device="cpu").view(1, 1, 1, 4) < 3
    key = bias.view(1, 2, 4, 3)

    def masked_softmax(of: Callable[..., Any]) -> Callable[[torch.Tensor], torch.Tensor]:
        return lambda bias: torch.softmax(of(bias, seen, False, bias, key), -1)

    same: bool = computes_same(
        masked_softmax(function), masked_softmax(_separate), bias, rtol=0, atol=0
    )
    return same


def _replace(patch: FunctionPatch) -> None:
    setattr(patch.owner, FUNCTION, patch.function())


POSITION_BIAS = ObjectPatch(_functions, _replace)
