"""Computes derivatives of kernels with torch's functions if the loops do not support the case.

The loops compute gradients only for tensors in memory, and autograd cannot differentiate these
gradients again. In three cases, torch computes the backward pass instead, from a formula for the
kernel's output: with `create_graph`, for batched gradients (`is_grads_batched`, vectorized
Jacobians), and under a transform of `torch.func`.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ftcluster_kernels.private_torch import has_memory, is_transformed


def needs_torch(*grads: torch.Tensor | None) -> bool:
    """Return True if torch must compute the backward pass for these gradients of the outputs."""
    if torch.is_grad_enabled() or is_transformed():
        return True
    return not all(grad is None or has_memory(grad) for grad in grads)


def by_torch(
    formula: Callable[..., Any],
    inputs: Sequence[torch.Tensor | None],
    *grads: torch.Tensor | None,
) -> list[torch.Tensor | None]:
    """Return the gradients of a formula's inputs; with `create_graph`, they are differentiable.

    Args:
        formula: function of the inputs that returns a tensor for each of `grads`; a single tensor
            needs no tuple.
        inputs: arguments of the formula, as saved by autograd. The result for an input that
            requires no gradient is None.
        grads: gradients of the outputs.
    """
    create_graph = torch.is_grad_enabled()
    # an active `TorchFunctionMode` could redirect the formula's functions to the kernel
    with torch.enable_grad(), torch.autocast("cpu", enabled=False), torch._C.DisableTorchFunction():
        # a new node for each input, because an input may have been computed from another input
        nodes = [x.view_as(x) if x is not None and x.requires_grad else None for x in inputs]
        wanted = [node for node in nodes if node is not None]
        outputs = formula(
            *(x if node is None else node for x, node in zip(inputs, nodes, strict=True))
        )
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        pairs = [
            (output, grad) for output, grad in zip(outputs, grads, strict=True) if grad is not None
        ]
        gradients = iter(
            torch.autograd.grad(
                [output for output, _ in pairs], wanted, [grad for _, grad in pairs],
                create_graph=create_graph, allow_unused=True,
            )
        )  # fmt: skip
    return [None if node is None else next(gradients) for node in nodes]
