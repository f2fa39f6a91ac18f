"""Which kernels a loss was computed with, and what of the model had none."""

from collections.abc import Collection, Iterator
from typing import Any

import torch
from torch import nn

from ftcluster_train.kernels import simd
from ftcluster_train.patching.fused_modules import FusedForward, one_kernel_gelu, tanh_gelu

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
    found = {NODES[name] for name in functions_of(loss) if name in NODES}
    if any(_is_ours(module) for module in model.modules()):
        found.add("activations")
    return sorted(found)


def left_alone(model: nn.Module, used: Collection[str]) -> str:
    """What looks like attention, norms, gated MLPs and rotary positions, but has no kernel.

    A sentence with the names of its classes, or "". Call it after a training step.

    Args:
        used: from `kernels_in_use`.
    """
    if not simd.is_available():  # which is said elsewhere
        return ""
    found = dict.fromkeys(_own_code(model, used))
    return f"without a kernel: {', '.join(found)}" if found else ""


def _own_code(model: nn.Module, used: Collection[str]) -> Iterator[str]:
    # transformers has no public name for it (5.23)
    chosen = getattr(getattr(model, "config", None), "_attn_implementation", None)
    for module in model.modules():
        forward = vars(module).get("forward")
        if isinstance(getattr(forward, "fused", forward), FusedForward):
            continue
        name, parts = type(module).__name__, [*vars(module)["_modules"], *module._parameters]
        if "Attention" in name and "attention" not in used:
            if not any("Attention" in type(part).__name__ for part in module.children()):
                how = f", attn_implementation={chosen}" if chosen else ""
                yield f"{name} (no call of torch's function as the kernel has it{how})"
        elif name.endswith("RMSNorm") or (
            # torch's LayerNorm calls torch's function, whose guard knows when it has a kernel
            "Norm" in name and "norm" not in used and type(module) is not nn.LayerNorm
        ):
            yield f"{name} (another norm than the kernel has)"
        elif "Rotary" in name and "rotary" not in used:
            yield f"{name} (another function, or other types and shapes than the kernel has)"
        elif any(part in ("gate_proj", "gate_up_proj") for part in parts):
            yield f"{name} (other layers or another activation than the kernel has)"


def functions_of(loss: torch.Tensor) -> set[str]:
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
