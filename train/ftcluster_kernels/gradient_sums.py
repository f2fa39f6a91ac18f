"""Memory in fp32 to which matmuls add the gradients of weights.

Autograd would return each gradient as a tensor, rounded to bf16, which costs another write and
read. Functions of this package add the gradient to their argument `sums`; if `sums` is None, they
return the gradient to autograd.
"""

import torch

from ftcluster_kernels import products


class GradientSums:
    """The fp32 sum of a weight's gradients.

    Attributes:
        values: the sums, fp32, with the weight's shape.
        dtype: dtype of the factors of the matmul, bf16 or fp32.
        filled: True once `values` contain a part of the step's gradient; until then, `values` are
            undefined.
    """

    def __init__(self, values: torch.Tensor, dtype: torch.dtype) -> None:
        self.values, self.dtype, self.filled = values, dtype, False

    def takes(self, left: torch.Tensor, right: torch.Tensor) -> bool:
        """Return True if `add_product` supports these factors."""
        of_weight: bool = self.values.shape == (left.shape[1], right.shape[1])
        return of_weight and left.dtype == right.dtype == self.dtype

    def add(self, gradient: torch.Tensor, factor: float) -> None:
        """Add `factor` times a gradient in fp32."""
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
        """Record that the owner of `values` has written a part of the gradient to `values`."""
        self.filled = True

    def restart(self) -> None:
        """Start a step: the next gradient replaces the sums."""
        self.filled = False


def make_sums(values: torch.Tensor, dtype: torch.dtype) -> GradientSums | None:
    """Return sums for a weight of a dtype, or None if autograd must return the gradient.

    Args:
        values: memory for the gradient, fp32, aligned to a cache line.
    """
    fits = values.ndim == 2 and products.has_sums(dtype, *values.shape)
    return GradientSums(values, dtype) if fits else None


def unless_hooked(sums: GradientSums | None, weight: torch.Tensor) -> GradientSums | None:
    """Return the sums, or None if a hook on the weight must receive the gradient."""
    return None if weight._backward_hooks else sums
