"""Gradients of weights, added to the fp32 sums of the training by the product that computes them.

Autograd would return a tensor, in bf16 a rounded one, which is written and read once more.
"""

import torch

from ftcluster_kernels import products


class GradientSums:
    """Where the gradient of a weight is summed; the weight has it as attribute `gradient_sums`.

    Attributes:
        values: fp32, of the weight's shape.
        dtype: of the factors, bf16 or fp32.
        filled: whether they have a part of the step's gradient; otherwise they may be anything.
    """

    def __init__(self, values: torch.Tensor, dtype: torch.dtype) -> None:
        self.values, self.dtype, self.filled = values, dtype, False

    def takes(self, left: torch.Tensor, right: torch.Tensor) -> bool:
        """Whether `add_product` computes with these factors."""
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
        """Add left' right, of shapes (rows, outputs) and (rows, inputs)."""
        products.add_columns(left, right, self.values, self.filled)
        self.filled = True


def make_sums(values: torch.Tensor, dtype: torch.dtype) -> GradientSums | None:
    """The sums of a weight that the model has in a dtype; None where autograd has to return them.

    Args:
        values: where the gradient is to be, fp32 from a cache line on.
    """
    fits = values.ndim == 2 and products.has_sums(dtype, *values.shape)
    return GradientSums(values, dtype) if fits else None


def sums_of(weight: torch.Tensor) -> GradientSums | None:
    """Those of a weight, unless a hook of somebody's is to see its gradient."""
    return None if weight._backward_hooks else getattr(weight, "gradient_sums", None)
