"""The entries of torch's functions that trainings and scripts share."""

import torch
from torch.nn import functional

from ftcluster_train.kernels.activations import activate, torch_gelu, torch_silu
from ftcluster_train.kernels.dropout import dropout, exact_dropout
from ftcluster_train.patching.registry import FunctionPatch

GELUS = {"none": "gelu", "tanh": "tanh_gelu"}  # kernels by torch's names of approximations
torch_dropout = functional.dropout  # also where `ftcluster_train.fast` has replaced it


def _drops(
    input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> str | None:
    fits = training and 0 < p < 1 and not inplace
    return None if fits and input.dtype in (torch.bfloat16, torch.float32) else ""


DROPOUT = FunctionPatch(
    functional, torch_dropout, _drops, lambda input, p=0.5, *_, **__: dropout(input, p)
)
EXACT_DROPOUT = FunctionPatch(
    functional, torch_dropout, _drops, lambda input, p=0.5, *_, **__: exact_dropout(input, p)
)


def _is_gelu(input: torch.Tensor, approximate: str = "none") -> str | None:  # noqa: ARG001
    return None if approximate in GELUS else ""


def _is_silu(input: torch.Tensor, inplace: bool = False) -> str | None:  # noqa: ARG001
    return "" if inplace else None


GELU = FunctionPatch(
    functional,
    torch_gelu,
    _is_gelu,
    lambda input, approximate="none": activate(GELUS[approximate], input),
)
SILU = FunctionPatch(
    functional, torch_silu, _is_silu, lambda input, *_, **__: activate("silu", input)
)
