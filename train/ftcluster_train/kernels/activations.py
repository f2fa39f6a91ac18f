"""Activations that transformers computes in many passes, as one kernel of torch."""

import torch
from torch import nn
from torch.nn import functional
from transformers import activations

# both are the tanh approximation of GELU
TANH_GELU = (activations.NewGELUActivation, activations.FastGELUActivation)


class TanhGelu(nn.Module):  # type: ignore[misc]
    """The same in one kernel."""

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Of any shape."""
        return functional.gelu(values, approximate="tanh")


def fuse_activations(model: nn.Module) -> int:
    """Replace them by `TanhGelu`; returns how many there were."""
    found = [
        (parent, name)
        for parent in model.modules()
        for name, child in parent.named_children()
        if type(child) in TANH_GELU
    ]
    for parent, name in found:
        setattr(parent, name, TanhGelu())
    return len(found)
