"""Derivatives of the kernels by torch's own functions, where a loop's gradients do not do.

The loops compute gradients that have no gradients themselves, of tensors in memory. A backward pass
with `create_graph`, of batched gradients (`is_grads_batched`, vectorized Jacobians) or under a
transform is therefore computed by torch, from a formula for the kernel's output.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ftcluster_kernels.private_torch import has_memory, is_transformed


def needs_torch(*grads: torch.Tensor | None) -> bool:
    """Return True if torch has to compute a backward pass with these gradients of outputs."""
    if torch.is_grad_enabled() or is_transformed():
        return True
    return not all(grad is None or has_memory(grad) for grad in grads)


def by_torch(
    formula: Callable[..., Any],
    inputs: Sequence[torch.Tensor | None],
    *grads: torch.Tensor | None,
) -> list[torch.Tensor | None]:
    """Return the gradients of a formula's inputs, which have gradients themselves if needed.

    Args:
        formula: takes the inputs, and returns a tensor for each of `grads`; one alone by itself.
        inputs: as autograd knows them, so that their history is known; those that require no
            gradient get None.
        grads: gradients of the outputs.
    """
    create_graph = torch.is_grad_enabled()
    # a mode could send the formula to the kernel again
    with torch.enable_grad(), torch.autocast("cpu", enabled=False), torch._C.DisableTorchFunction():
        # each a node of its own: an input may have been computed from another one
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
