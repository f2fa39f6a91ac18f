"""Gradients of weights whose matmul adds them directly to the training's fp32 sums.

Autograd would return each gradient as a tensor, rounded in bf16, which costs another write and
read. The functions of this package take such sums as their argument `sums`; without `sums` they
return the gradient to autograd.
"""

import torch

from ftcluster_kernels import products


class GradientSums:
    """The memory that the gradient of a weight is summed in.

    Attributes:
        values: the sums, fp32, of the weight's shape.
        dtype: dtype of the factors, bf16 or fp32.
        filled: True once `values` hold a part of the step's gradient; before, `values` are
            undefined.
    """

    def __init__(self, values: torch.Tensor, dtype: torch.dtype) -> None:
        self.values, self.dtype, self.filled = values, dtype, False

    def takes(self, left: torch.Tensor, right: torch.Tensor) -> bool:
        """Return True if `add_product` supports these factors."""
        of_weight: bool = self.values.shape == (left.shape[1], right.shape[1])
        return of_weight and left.dtype == right.dtype == self.dtype

    def add(self, gradient: torch.Tensor, factor: float) -> None:
        """Add the factor times a gradient in fp32."""
        if self.filled:
            self.values.add_(gradient, alpha=factor)
        else:
            torch.mul(gradient, factor, out=self.values)
        self.filled = True

    def add_product(self, left: torch.Tensor, right: torch.Tensor) -> None:
        """Add left.T @ right, for shapes (rows, outputs) and (rows, inputs)."""
        products.add_columns(left, right, self.values, self.filled)
        self.filled = True

    def mark_filled(self) -> None:
        """Record that the owner of the memory has written a part of the gradient there."""
        self.filled = True

    def restart(self) -> None:
        """Make the next gradient replace the sums, at the beginning of a step."""
        self.filled = False


def make_sums(values: torch.Tensor, dtype: torch.dtype) -> GradientSums | None:
    """Return the sums of a weight in a dtype, or None if autograd must return its gradient.

    Args:
        values: memory for the gradient, fp32, aligned to a cache line.
    """
    fits = values.ndim == 2 and products.has_sums(dtype, *values.shape)
    return GradientSums(values, dtype) if fits else None


def unless_hooked(sums: GradientSums | None, weight: torch.Tensor) -> GradientSums | None:
    """Return the sums, or None if a hook on the weight expects to see its gradient."""
    return None if weight._backward_hooks else sums
