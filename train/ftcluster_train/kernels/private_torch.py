"""Private names of torch that have no public equivalent. tests/engine fails when one goes."""

from functools import cache

import torch
from torch.autograd import forward_ad


def version_of(tensor: torch.Tensor) -> int:
    """A number that grows with each change in place; 0 for inference tensors, which have none."""
    return 0 if tensor.is_inference() else tensor._version


def is_transformed() -> bool:
    """Return True if torch has to see each operation, so that no kernel may replace it.

    A transform of torch.func, forward-mode differentiation or a dispatch mode, such as
    FlopCounterMode, is active.
    """
    return bool(
        forward_ad._current_level >= 0
        or torch._C._are_functorch_transforms_active()
        or torch._C._len_torch_dispatch_stack() > 0
    )


def has_memory(tensor: torch.Tensor) -> bool:
    """Return False for a tensor without elements of its own, such as a batched gradient."""
    return bool(torch._C._has_storage(tensor))


def has_step_hooks(optimizer: torch.optim.Optimizer) -> bool:
    """Return True if an optimizer calls hooks of its own before each step."""
    return bool(optimizer._optimizer_step_pre_hooks)


def function_of(node: object) -> type | None:
    """Return the autograd function in Python that made a node of a graph, or None."""
    function: type | None = getattr(type(node), "_forward_cls", None)
    return function


@cache
def has_onednn_linear(dtype: torch.dtype) -> bool:
    """Whether `onednn_linear` works with this torch, on this CPU."""
    small = torch.ones(2, 2, dtype=dtype, device="cpu")
    try:
        onednn_linear(small, small, small[0])
    except (AttributeError, RuntimeError):  # a torch without oneDNN, or a CPU too old for bf16
        return False
    return True


def onednn_linear(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """A linear layer by oneDNN, which adds the bias to sums in its registers.

    torch's addmm copies the bias into each row of the output and reads it again, which makes a
    product 5 to 7 % slower. All have the same dtype, bf16 or fp32, and the bias is contiguous; has
    no gradient of its own.
    """
    output: torch.Tensor = torch.ops.mkldnn._linear_pointwise(input, weight, bias, "none", [], "")
    return output
