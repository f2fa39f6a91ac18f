"""Activations that transformers computes in many passes, as torch's one kernel for each."""

from torch import nn
from transformers import activations

TANH_GELU = (
    activations.NewGELUActivation,
    activations.FastGELUActivation,
)  # equal in exact numbers


def fuse_activations(model: nn.Module) -> int:
    """Put `nn.GELU` in the place of the tanh forms of GELU that Python writes out; counts them."""
    found = [
        (parent, name)
        for parent in model.modules()
        for name, child in parent.named_children()
        if type(child) in TANH_GELU
    ]
    for parent, name in found:
        setattr(parent, name, nn.GELU(approximate="tanh"))
    return len(found)
