"""Rotary positions in one loop equal the formula in fp64, except for rounding."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ftcluster_kernels.rotary import rotary
from tests.engine.drawn import check_near, dtypes, seeds, unit

pytestmark = pytest.mark.needs("avx2", "compiler")  # then the package has the loops


def formula(values: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor) -> torch.Tensor:
    low, high = values.chunk(2, -1)
    return values * cosines.unsqueeze(1) + torch.cat([-high, low], -1) * sines.unsqueeze(1)


@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 9), st.integers(1, 40),
       dtypes, st.booleans(), st.booleans(), seeds)  # fmt: skip
def test_output_and_gradients(
    batch: int, heads: int, tokens: int, half: int, dtype: torch.dtype, shared: bool,
    in_heads: bool, seed: int,
) -> None:  # fmt: skip
    """Use cosines and sines per sample or shared, and heads or tokens adjacent in memory."""
    numbers = torch.Generator().manual_seed(seed % (1 << 32))
    shape = (batch, heads, tokens, 2 * half)
    query, key, up = torch.randn(3, *shape, generator=numbers).to(dtype)
    if not in_heads:
        query, key = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (query, key))
    cosines, sines = torch.randn(2, 1 if shared else batch, tokens, 2 * half, generator=numbers)
    inputs = [query.requires_grad_(), key.requires_grad_()]
    found = rotary(*inputs, cosines, sines)
    gradients = torch.autograd.grad(found, inputs, (up, up))
    for x, one, gradient in zip(inputs, found, gradients, strict=True):
        exact_x = x.detach().double().requires_grad_()
        exact = formula(exact_x, cosines.double(), sines.double())
        (exact_gradient,) = torch.autograd.grad(exact, exact_x, up.double())
        angles = cosines.abs().double(), sines.abs().double()
        u = unit(dtype, 3)
        check_near(one, exact.detach(), u * positive(x.detach().double(), *angles))
        check_near(gradient, exact_gradient, u * positive(up.double(), *angles, back=True))


def positive(
    values: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor, back: bool = False
) -> torch.Tensor:
    """Return the formula with absolute values."""
    swapped = values.abs().roll(values.shape[-1] // 2, -1)
    sines = sines.roll(values.shape[-1] // 2, -1) if back else sines
    return values.abs() * cosines.unsqueeze(1) + swapped * sines.unsqueeze(1)
