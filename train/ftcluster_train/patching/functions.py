"""The entries of torch's functions that trainings and scripts share."""

import torch
from torch.nn import functional

from ftcluster_train.kernels import simd
from ftcluster_train.kernels.activations import activate, torch_gelu, torch_silu
from ftcluster_train.kernels.dropout import MOST, dropout
from ftcluster_train.patching.registry import FunctionPatch

GELUS = {"none": "gelu", "tanh": "tanh_gelu"}  # kernels by torch's names of approximations
torch_dropout = functional.dropout  # also where `ftcluster_train.fast` has replaced it


def _drops(
    input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> str | None:
    """Calls in training that leave their input as it is, of fp32 or bf16."""
    fits = training and 0 < p <= MOST and not inplace and simd.is_fit(input)
    return None if fits else ""


DROPOUT = FunctionPatch(
    functional, torch_dropout, _drops, lambda input, p=0.5, *_, **__: dropout(input, p)
)
EXACT_DROPOUT = FunctionPatch(
    functional, torch_dropout, _drops, lambda input, p=0.5, *_, **__: dropout(input, p, exact=True)
)


def _is_gelu(input: torch.Tensor, approximate: str = "none") -> str | None:  # noqa: ARG001
    """GELU and its tanh approximation."""
    return None if approximate in GELUS else ""


def _is_silu(input: torch.Tensor, inplace: bool = False) -> str | None:  # noqa: ARG001
    """Calls that leave their input as it is."""
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
