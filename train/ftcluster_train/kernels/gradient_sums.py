"""Gradients of weights, added to the fp32 sums of the training by the product that computes them.

Autograd would return a tensor, in bf16 a rounded one, which is written and read once more.
"""

import torch

from ftcluster_train.kernels import products


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
        of_weight = self.values.shape == (left.shape[1], right.shape[1])
        fits = self.dtype == torch.float32 or products.fits_tiles(*self.values.shape)
        return of_weight and fits and left.dtype == right.dtype == self.dtype

    def add(self, gradient: torch.Tensor, factor: float) -> None:
        """Add the factor times a gradient in fp32."""
        if self.filled:
            self.values.add_(gradient, alpha=factor)
        else:
            torch.mul(gradient, factor, out=self.values)
        self.filled = True

    def add_product(self, left: torch.Tensor, right: torch.Tensor) -> None:
        """Add left' right, of shapes (rows, outputs) and (rows, inputs)."""
        if self.dtype == torch.float32:
            if self.filled:
                self.values.addmm_(left.T, right)
            else:
                torch.mm(left.T, right, out=self.values)
        elif len(left):
            left, right = left.contiguous(), right.contiguous()
            products.weight_gradient_(left, right, self.values, self.filled)
        elif not self.filled:
            self.values.zero_()
        self.filled = True


def make_sums(values: torch.Tensor, dtype: torch.dtype) -> GradientSums | None:
    """The sums of a weight that the model has in a dtype; None where autograd has to return them.

    Args:
        values: where the gradient is to be, fp32 from a cache line on.
    """
    fits = dtype == torch.float32 or (dtype == torch.bfloat16 and products.has_amx())
    return GradientSums(values, dtype) if fits and values.ndim == 2 else None


def sums_of(weight: torch.Tensor) -> GradientSums | None:
    """Those of a weight, unless a hook of somebody's is to see its gradient."""
    return None if weight._backward_hooks else getattr(weight, "gradient_sums", None)
