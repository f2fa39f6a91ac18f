"""Random tensors for tests of kernels, and the error that each dtype allows.

A kernel is compared with its formula in fp64. The tolerance is not chosen but computed: rounding to
a dtype changes a number by at most its unit roundoff u. So the bound is the number of roundings
times u times the same formula with absolute values (Higham 2002, "Accuracy and Stability of
Numerical Algorithms", chapters 2 and 3). A sum of n terms in fp32 counts as n roundings to fp32.
"""

import math
from collections.abc import Sequence

import torch
from hypothesis import strategies as st

from ftcluster_kernels import simd
from ftcluster_kernels.cpu import cpuinfo_field

DTYPES = (torch.float32, torch.bfloat16)
ROUNDOFF = {dtype: torch.finfo(dtype).eps / 2 for dtype in DTYPES}  # 2^-24 and 2^-8
TINY = float(torch.finfo(torch.float32).tiny)  # smaller numbers lose bits, or are treated as 0

# the libraries of loops that this CPU can run, the fastest first
LIBRARIES = [
    name for name, needed in simd.LIBRARIES.items()
    if needed <= set(cpuinfo_field("flags").split())
]  # fmt: skip

dtypes = st.sampled_from(DTYPES)
seeds = st.integers(-(2**63), 2**63 - 1)
sizes = st.sampled_from([1.0, 1e-4, 0.1, 10.0, 100.0])
kinds = st.sampled_from(["normal", "normal", "equal", "positive", "few", "an outlier", "zero"])


@st.composite
def tensors(
    draw: st.DrawFn,
    shape: Sequence[int],
    dtype: torch.dtype,
    size: st.SearchStrategy[float] = sizes,
) -> torch.Tensor:
    """Draw a tensor of values that `dtype` can represent; all have the same kind."""
    numbers = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    made = torch.randn(list(shape), generator=numbers)
    kind = draw(kinds)
    if kind == "equal":
        made = torch.ones(list(shape))
    elif kind == "positive":
        made = made.abs() + 1
    elif kind == "few":
        made = made.sign() * (made.abs() > 1)
    elif kind == "an outlier" and made.numel():
        made.view(-1)[0] = 50.0
    elif kind == "zero":
        made = torch.zeros(list(shape))
    return (made * draw(size)).to(dtype)


def unit(dtype: torch.dtype, terms: int = 1) -> float:
    """Return the relative error of one rounding to `dtype` after a sum of `terms` in fp32."""
    return ROUNDOFF[dtype] + terms * ROUNDOFF[torch.float32]


def check_near(found: torch.Tensor, exact: torch.Tensor, bound: torch.Tensor | float) -> None:
    """Check that every element is within its bound; the error shows the largest excess.

    Args:
        found: the result of a kernel.
        exact: the same in fp64.
        bound: the absolute error that each element may have, but for underflow.
    """
    assert found.shape == exact.shape
    assert bool(found.isfinite().all())
    over = (found.detach().double() - exact.detach()).abs() / (bound + TINY)
    worst = float(over.max()) if over.numel() else 0.0
    assert math.isfinite(worst)
    assert worst <= 1, f"{worst:.3g} times the error that its roundings allow"
