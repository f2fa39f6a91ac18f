"""Activations that transformers computes in many passes, as one kernel of torch."""

from torch import nn
from transformers import activations

# both are the tanh approximation of GELU
TANH_GELU = (activations.NewGELUActivation, activations.FastGELUActivation)


def fuse_activations(model: nn.Module) -> int:
    """Replace them by `nn.GELU`; returns how many there were."""
    found = [
        (parent, name)
        for parent in model.modules()
        for name, child in parent.named_children()
        if type(child) in TANH_GELU
    ]
    for parent, name in found:
        setattr(parent, name, nn.GELU(approximate="tanh"))
    return len(found)
