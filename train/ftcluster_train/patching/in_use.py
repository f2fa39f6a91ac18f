"""Which kernels a loss was computed with."""

from typing import Any

import torch
from torch import nn

from ftcluster_train.patching.fused_modules import one_kernel_gelu, tanh_gelu

# by the name of a function in the graph of a loss
NODES = {
    "_AttentionBackward": "attention",
    "_DropoutBackward": "dropout",
    "_LinearCrossEntropyBackward": "cross_entropy",
    "_CrossEntropyBackward": "cross_entropy",
    "_TokenLossesBackward": "cross_entropy",
    "_LowRankLinearBackward": "low_rank",
    "_ActivationBackward": "activations",
    "_NormBackward": "norm",
    "_RotaryBackward": "rotary",
}


def kernels_in_use(loss: torch.Tensor, model: nn.Module) -> list[str]:
    """The names of the kernels that took part in a step, in alphabetical order.

    They are read from the loss's graph, once, so the kernels themselves need not count calls. Call
    it before the backward pass.

    Args:
        model: which the loss is of.
    """
    found = {NODES[name] for name in _functions(loss) if name in NODES}
    if any(_is_ours(module) for module in model.modules()):
        found.add("activations")
    return sorted(found)


def _functions(loss: torch.Tensor) -> set[str]:
    """The names of all functions that a loss was computed by."""
    seen: set[Any] = set()
    waiting = [loss.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            waiting += [parent for parent, _ in node.next_functions]
    return {node.name() for node in seen}


def _is_ours(module: nn.Module) -> bool:
    """Whether it is a GELU in one kernel, which torch's functions may compute as well."""
    forward = vars(module).get("forward", type(module).forward)
    return getattr(forward, "function", forward) in (one_kernel_gelu, tanh_gelu)
