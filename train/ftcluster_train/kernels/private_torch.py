"""Private names of torch that have no public equivalent. tests/engine fails when one goes."""

import torch


def softmax_backward(grad_output: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
    """The gradient of softmax over the last dimension, in one pass."""
    grad_input: torch.Tensor = torch.ops.aten._softmax_backward_data(
        grad_output, output, -1, output.dtype
    )
    return grad_input


def version_of(tensor: torch.Tensor) -> int:
    """A number that grows with each change in place; 0 for inference tensors, which have none."""
    return 0 if tensor.is_inference() else tensor._version


def is_transformed() -> bool:
    """Whether a transform of torch.func, such as vmap, is active."""
    return bool(torch._C._are_functorch_transforms_active())
