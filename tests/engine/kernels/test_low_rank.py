"""A linear layer with an adapter equals the formula in fp64, except for rounding."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ftcluster_kernels import lora, low_rank_products, products, simd
from ftcluster_kernels.cpu import cpuinfo_field
from ftcluster_kernels.gradient_sums import make_sums
from ftcluster_kernels.lora import Adapter, linear_with_adapter
from ftcluster_kernels.low_rank_products import fits_loops, uses_pairs
from tests.engine.drawn import LIBRARIES, check_near, dtypes, tensors, unit

BF16 = torch.bfloat16
HAS_BF16 = "avx512_bf16" in cpuinfo_field("flags").split()
wide = st.sampled_from([32, 64, 96])  # sizes for which tiles are used


@given(st.integers(1, 40), st.integers(1, 24), st.integers(1, 24), st.integers(1, 8), dtypes,
       st.booleans(), st.sampled_from([1.0, 2.0, 0.3]), st.data())  # fmt: skip
def test_output_and_gradients(
    tokens: int, inputs: int, outputs: int, rank: int, dtype: torch.dtype, biased: bool,
    scale: float, data: Any,
) -> None:  # fmt: skip
    check(tokens, inputs, outputs, rank, dtype, biased, scale, data)


@pytest.mark.needs("avx2", "compiler")
@pytest.mark.parametrize("library", LIBRARIES)
@given(st.integers(1, 100), st.integers(1, 300), st.integers(1, 300), st.integers(1, 32), dtypes,
       st.booleans(), st.booleans(), st.sampled_from([1.0, 2.0, 0.3]), st.sampled_from([1, 3]),
       st.data())  # fmt: skip
def test_in_loops(
    library: str, tokens: int, inputs: int, outputs: int, rank: int, dtype: torch.dtype,
    biased: bool, in_pairs: bool, scale: float, threads: int, data: Any,
) -> None:  # fmt: skip
    """The sizes cross the ends of registers, blocks and panels."""
    in_pairs &= HAS_BF16 and library == "libavx512.so" and dtype == BF16
    if in_pairs:
        inputs, outputs = inputs + inputs % 2, outputs + outputs % 2
    loaded, before = simd.load(Path(simd.__file__).with_name(library)), torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(simd, "FEW_ELEMENTS", 0)
            patch.setattr(simd, "loaded_library", lambda: loaded)
            patch.setattr(lora, "takes_adapter", lambda *_: False)
            patch.setattr(low_rank_products, "fma_dtypes", lambda: {BF16} if in_pairs else {})
            assert fits_loops(rank, torch.empty(1, dtype=dtype))
            assert uses_pairs(dtype, inputs, outputs) == in_pairs
            check(tokens, inputs, outputs, rank, dtype, biased, scale, data)
    finally:
        torch.set_num_threads(before)


def test_ranks_and_tensors_without_loops() -> None:
    assert not fits_loops(33, torch.empty(1))
    assert not fits_loops(0, torch.empty(1))
    assert not fits_loops(16, torch.empty(1), torch.empty(1, dtype=BF16))
    assert not fits_loops(16, torch.empty(1, device="meta"))


@pytest.mark.needs("amx", "compiler")
@given(st.integers(1, 100), wide, wide, st.integers(1, 70), st.booleans(),
       st.sampled_from([1.0, 2.0, 0.3]), st.data())  # fmt: skip
def test_on_tiles(
    tokens: int, inputs: int, outputs: int, rank: int, biased: bool, scale: float, data: Any
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(products, "FEWEST_ROWS", 1)
        patch.setattr(products, "NARROWEST_WITH_ADAPTER", 32)
        factors = (
            torch.empty(inputs, outputs),
            torch.empty(inputs, rank),
            torch.empty(rank, outputs),
        )
        right, down, up = (x.to(BF16) for x in factors)
        assert products.takes_adapter(torch.empty(tokens, inputs).to(BF16), right, None, down, up)
        check(tokens, inputs, outputs, rank, BF16, biased, scale, data)


def check(
    tokens: int, inputs: int, outputs: int, rank: int, dtype: torch.dtype, biased: bool,
    scale: float, data: Any,
) -> None:  # fmt: skip
    """Check the output and all gradients of a drawn layer."""
    shapes = ((1, tokens, inputs), (outputs, inputs), (rank, inputs), (outputs, rank))
    x, weight, down, up = (data.draw(tensors(shape, dtype)) for shape in shapes)
    bias = data.draw(tensors((outputs,), dtype)) if biased else None
    upstream = data.draw(tensors((1, tokens, outputs), dtype))
    trained = [torch.nn.Parameter(one) for one in (x, down, up)]
    adapter = Adapter(trained[1], trained[2], scale)
    found = linear_with_adapter(trained[0], weight, bias, adapter)
    gradients = torch.autograd.grad(found, trained, upstream)
    assert [one.dtype for one in (found, *gradients)] == [dtype] * 4

    x, weight, down, up, g = (one.double() for one in (x[0], weight, down, up, upstream[0]))
    b = torch.zeros(outputs).double() if bias is None else bias.double()

    def formulas(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x, weight, down, up, g, b = tensors
        low, of_low = x @ down.mT, scale * g @ up
        return (
            x @ weight.mT + b + scale * low @ up.mT,
            g @ weight + of_low @ down,
            of_low.mT @ x,
            scale * g.mT @ low,
        )

    exact = formulas(x, weight, down, up, g, b)
    # each product is rounded, and the adapter's addend up to four times
    most = formulas(*(one.abs() for one in (x, weight, down, up, g, b)))
    u = unit(dtype, max(tokens, inputs, outputs) + rank)
    for one, other, allowed in zip((found, *gradients), exact, most, strict=True):
        check_near(one.flatten(0, -2), other, 5 * u * allowed)


@pytest.mark.parametrize(
    "shape",
    [pytest.param((600, 160, 128), marks=pytest.mark.needs("amx", "compiler")), (40, 24, 9)],
)
def test_gradients_are_added_to_their_sums(shape: tuple[int, int, int]) -> None:
    torch.manual_seed(5)
    rows, inputs, outputs = shape
    x, weight = torch.randn(rows, inputs).to(BF16), torch.randn(outputs, inputs).to(BF16)
    factors = [torch.nn.Parameter(torch.randn(n).to(BF16)) for n in ((8, inputs), (outputs, 8))]
    exact = [torch.zeros(p.shape) for p in factors]
    of_down, of_up = (make_sums(torch.empty(p.shape), BF16) for p in factors)
    for _ in range(2):  # for each micro-batch
        grad = torch.randn(rows, outputs).to(BF16)
        adapter = Adapter(*factors, 0.5)
        linear_with_adapter(x, weight, None, adapter, (of_down, of_up)).backward(grad)
        low, of_low = x.float() @ factors[0].T.float() / 2, grad.float() @ factors[1].float() / 2
        exact[0] += of_low.T @ x.float()
        exact[1] += grad.float().T @ low
    for p, sums, wanted in zip(factors, (of_down, of_up), exact, strict=True):
        found = p.grad if sums is None else sums.values
        assert (found.float() - wanted).norm() < 0.01 * wanted.norm()
        assert sums is None or p.grad is None


@pytest.mark.needs("amx", "compiler")
def test_factors_in_another_order_are_left_to_torch() -> None:
    torch.manual_seed(6)
    x, weight = torch.randn(600, 160).to(BF16), torch.randn(160, 128).to(BF16).T
    down, up = torch.randn(160, 32).to(BF16).T, torch.randn(128, 32).to(BF16)
    exact = x.double() @ weight.double().T
    exact += x.double() @ down.double().T @ up.double().T
    for w, d, u in ((weight, down, up), (weight.contiguous(), down, up)):
        layer = Adapter(torch.nn.Parameter(d), torch.nn.Parameter(u), 1.0)
        found = linear_with_adapter(x, w, None, layer)
        found.sum().backward()
        assert (found.double() - exact).norm() < 0.01 * exact.norm()


@pytest.mark.needs("amx", "compiler")
@pytest.mark.parametrize(
    "bias", [torch.arange(320.0)[::2], torch.ones(1).expand(160), torch.ones(1)]
)
def test_a_bias_that_is_not_contiguous(bias: torch.Tensor) -> None:
    x, weight, bias = torch.zeros(600, 128).to(BF16), torch.zeros(160, 128).to(BF16), bias.to(BF16)
    factors = [torch.nn.Parameter(torch.zeros(n).to(BF16)) for n in ((8, 128), (160, 8))]
    found = linear_with_adapter(x, weight, bias, Adapter(*factors, 2))
    assert torch.equal(found, bias.expand(600, 160))


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (BF16, 0.02)])
def test_rows_with_a_length_of_their_own(dtype: torch.dtype, tolerance: float) -> None:
    """Output and gradients are the formula of DoRA in fp64; a row of zeros stays finite."""
    draw = torch.Generator().manual_seed(3)
    shapes = ((2, 30, 24), (16, 24), (4, 24), (16, 4), (16,), (16,), (2, 30, 16))
    x, weight, down, up, magnitude, bias, upstream = (
        torch.randn(shape, generator=draw).to(dtype) for shape in shapes
    )
    magnitude = magnitude.float().abs()
    weight[5], up[5], magnitude[5] = 0, 0, 0
    trained = [torch.nn.Parameter(one) for one in (x, down, up, magnitude)]
    adapter = Adapter(trained[1], trained[2], 0.5, magnitude=trained[3])
    found = linear_with_adapter(trained[0], weight, bias, adapter)
    gradients = torch.autograd.grad(found, trained, upstream)
    assert [one.dtype for one in (found, *gradients)] == [dtype] * 4 + [torch.float32]

    exact = [one.detach().double().requires_grad_() for one in (x, down, up, magnitude)]
    x, down, up, magnitude = exact
    merged = weight.double() + 0.5 * up @ down
    lengths = merged.norm(dim=1).detach()
    lengths[5] = 1
    expected = (magnitude / lengths) * (x @ merged.mT) + bias.double()
    wanted = torch.autograd.grad(expected, exact, upstream.double())
    for one, other in zip((found, *gradients), (expected, *wanted), strict=True):
        assert (one.double() - other).norm() <= tolerance * other.norm()
