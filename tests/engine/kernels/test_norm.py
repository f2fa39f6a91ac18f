"""A norm's outputs in bf16 and fp32, and the gradients of both."""

from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from ftcluster_kernels.norms import RoundedCopies, rms_norm
from ftcluster_train.patching import fp32_residuals
from ftcluster_train.patching.batch_context import BatchContext
from ftcluster_train.patching.fp32_residuals import LAYER_NORM, Linear
from tests.engine.drawn import check_near, tensors, unit
from tests.engine.kernels.test_simd import few_elements  # noqa: F401 - a fixture

pytestmark = pytest.mark.needs("avx2", "compiler")  # then the package has the loops
BF16_PRODUCTS = {"device_type": "cpu", "dtype": torch.bfloat16}
EPSILON = 0.1  # large, so that no row is only noise
layer_norm = LAYER_NORM.function()
FP32, BF16 = torch.float32, torch.bfloat16
COPIES = RoundedCopies()

NORMS = ("LayerNorm", "LayerNorm without bias", "RMSNorm")
kinds = st.sampled_from(NORMS)
rows = st.integers(1, 40)
widths = st.integers(1, 70) | st.sampled_from([16, 32])


@pytest.fixture(autouse=True, scope="module")
def _autocast() -> Iterator[None]:
    with BatchContext(copies=COPIES), torch.autocast(**BF16_PRODUCTS):  # as during training
        yield
    assert not len(COPIES)  # the copy is freed with its output


@st.composite
def matrices(draw: st.DrawFn, rows: int, width: int, dtype: torch.dtype) -> torch.Tensor:
    """Draw contiguous and transposed matrices, and one row repeated without a copy."""
    layout = draw(st.sampled_from(["contiguous", "transposed", "repeated"]))
    if layout == "transposed":
        return draw(tensors((width, rows), dtype)).T
    drawn = draw(tensors((1 if layout == "repeated" else rows, width), dtype))
    return drawn.expand(rows, width)


def normed(kind: str, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Return the norm's output as a model computes it."""
    if kind == "RMSNorm":
        return rms_norm(x, weight, EPSILON, COPIES)
    with BatchContext(fp32_weights={weight: weight.detach()}, copies=COPIES):
        return layer_norm(x, [len(weight)], weight, bias if kind == "LayerNorm" else None, EPSILON)


def drawn_norm(data: Any, kind: str, rows: int, width: int) -> torch.Tensor:
    """Return the output of a norm with drawn values."""
    x = data.draw(matrices(rows, width, FP32))
    return normed(kind, x, *(data.draw(tensors((width,), FP32)) for _ in range(2)))


@given(kinds, rows, widths, st.data())
def test_rounded_output(kind: str, rows: int, width: int, data: Any) -> None:
    """The bf16 output is the fp32 output, rounded once."""
    output = drawn_norm(data, kind, rows, width)
    assert torch.equal(COPIES.of(output), output.bfloat16())


def test_rounded_output_of_special_numbers() -> None:
    """Round NaN, infinities, values that round to infinity, ties and denormal numbers."""
    weight = torch.tensor([torch.nan, torch.inf, 3.4e38, 1 + 2**-8, 1 + 3 * 2**-8, 1e-39, -0.0])
    output = rms_norm(torch.tensor([[1.0], [-1.0]]).expand(2, 7), weight, 0.0, COPIES)
    torch.testing.assert_close(output[0], weight, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(COPIES.of(output), output.bfloat16(), rtol=0, atol=0, equal_nan=True)


def test_no_rounded_output() -> None:
    """Other tensors have no rounded output, even tensors computed from a norm's output."""
    x, weight = torch.randn(3, 20), torch.randn(20)
    output = rms_norm(x, weight, EPSILON, COPIES)
    others = (x, output + 0, output.clone(), output.view(60), output.bfloat16())
    assert [COPIES.of(one) for one in others] == [None] * len(others)


@pytest.mark.parametrize("kind", NORMS)
def test_no_rounded_output_after_a_change_in_place(kind: str) -> None:
    """A changed output has no rounded output any more, even if only a view was changed."""
    x, weight, bias = torch.randn(3, 20), torch.randn(20), torch.randn(20)
    for change in (lambda output: output.mul_(2), lambda output: output[0].zero_()):
        output = normed(kind, x, weight, bias)
        assert COPIES.of(output) is not None
        change(output)
        assert COPIES.of(output) is None


@pytest.mark.parametrize("kind", NORMS)
def test_no_rounded_output_where_products_are_in_fp32(kind: str) -> None:
    arguments = [torch.randn(size).requires_grad_() for size in ((3, 20), (20,), (20,))]
    upstream = torch.randn(3, 20)
    wanted = normed(kind, *arguments)
    with torch.autocast(**BF16_PRODUCTS, enabled=False):
        output = normed(kind, *arguments)
        assert COPIES.of(output) is None
        (found,) = torch.autograd.grad(output, arguments[0], upstream)
    assert torch.equal(output, wanted)
    assert torch.equal(found, torch.autograd.grad(wanted, arguments[0], upstream)[0])


def test_no_rounded_output_after_a_change_during_inference() -> None:
    with torch.inference_mode():
        output = rms_norm(torch.randn(3, 20), torch.randn(20), EPSILON, COPIES)
        output.mul_(2)
        assert COPIES.of(output) is None


@pytest.mark.parametrize("kind", NORMS)
def test_gradients_after_a_change_in_place(kind: str) -> None:
    """A model may change the output of a trainable norm in place, as with torch's norm."""
    x, weight, bias = (torch.randn(size).requires_grad_() for size in ((3, 20), (20,), (20,)))
    (wanted,) = torch.autograd.grad(normed(kind, x, weight, bias).mul(2).sum(), x)
    (found,) = torch.autograd.grad(normed(kind, x, weight, bias).mul_(2).sum(), x)
    assert torch.equal(found, wanted)


@given(kinds, st.sampled_from(["fp32", "bf16", "both"]), rows, widths, st.integers(1, 3), st.data())
def test_gradients(kind: str, used: str, rows: int, width: int, threads: int, data: Any) -> None:
    """Gradients reach the fp32 output, the bf16 output or both, on any number of threads."""
    torch.set_num_threads(threads)
    x = data.draw(matrices(rows, width, FP32)).requires_grad_()
    weight, bias = (data.draw(tensors((width,), FP32)).requires_grad_() for _ in range(2))
    own = (x, weight, bias) if kind == "LayerNorm" else (x, weight)
    output = normed(kind, x, weight, bias)
    outputs, upstream = [], []
    for name, one, dtype in (("fp32", output, FP32), ("bf16", COPIES.of(output), BF16)):
        if used in (name, "both"):
            outputs.append(one)
            upstream.append(data.draw(matrices(rows, width, dtype)))
    found = torch.autograd.grad(outputs, own, upstream)
    assert [g.dtype for g in found] == [FP32] * len(own)
    check_gradients(found, x, weight, sum(one.double() for one in upstream), kind != "RMSNorm")


@pytest.mark.parametrize(
    ("weight", "epsilon"),
    [(torch.arange(40.0)[::2], EPSILON), (torch.ones(20), 1)],
    ids=["strided weight", "integer as epsilon"],
)
def test_arguments_that_torch_takes(weight: torch.Tensor, epsilon: float) -> None:
    x, bias = torch.randn(3, 20), torch.zeros(20)
    wanted = functional.layer_norm(x, [20], weight, bias, epsilon)
    with BatchContext(fp32_weights={weight: weight}, copies=COPIES):
        torch.testing.assert_close(layer_norm(x, [20], weight, bias, epsilon), wanted)


@pytest.mark.parametrize(("dtype", "of_weight"), [(BF16, BF16), (BF16, FP32), (FP32, BF16)])
def test_rms_norm_of_other_dtypes(dtype: torch.dtype, of_weight: torch.dtype) -> None:
    """Compute in fp32, then round to the wider dtype; round gradients to their own dtypes."""
    leaves = [torch.randn(5, 20).to(dtype), torch.randn(20).to(of_weight)]
    found, wanted = (
        (output, *torch.autograd.grad(output.sum(), inputs))
        for inputs in ([x.requires_grad_() for x in leaves], [x.float() for x in leaves])
        for output in [rms_norm(*inputs, EPSILON)]
    )
    wider = torch.promote_types(dtype, of_weight)
    for one, other, kind in zip(found, wanted, (wider, dtype, of_weight), strict=True):
        assert torch.equal(one, other.to(kind))


def check_gradients(
    found: tuple[torch.Tensor, ...],
    x: torch.Tensor,
    weight: torch.Tensor,
    up: torch.Tensor,
    centered: bool,
) -> None:
    """Compare the gradients with the formula in fp64."""
    x, weight = x.detach().double(), weight.detach().double()
    apart = x - x.mean(-1, keepdim=True) if centered else x
    scale = (apart.square().mean(-1, keepdim=True) + EPSILON).rsqrt()
    normal, inner = apart * scale, up * weight
    shift = inner.mean(-1, keepdim=True) if centered else 0
    of_x = scale * (inner - shift - normal * (inner * normal).mean(-1, keepdim=True))
    exact = (of_x, (up * normal).sum(0), up.sum(0))

    # normalized values also have the rounding error of the mean
    most = 1 + normal.abs()
    inner = inner.abs()
    inner = inner + inner.mean(-1, keepdim=True) + most * (inner * most).mean(-1, keepdim=True)
    u = 8 * unit(FP32, len(x) + x.shape[1])
    off = u * (1 + x.abs().amax(-1, keepdim=True) * scale)
    bounds = (off * scale * inner, (off * up.abs() * most).sum(0), u * up.abs().sum(0))
    for one, other, bound in zip(found, exact, bounds, strict=False):
        check_near(one, other, bound)


@pytest.mark.parametrize("kind", NORMS)
def test_linear_takes_the_rounded_output(kind: str) -> None:
    """The linear layer uses the rounded output only while the norm's output is unchanged."""
    output = normed(kind, torch.randn(3, 20), torch.randn(20), torch.randn(20))
    rounded, linear, weight = COPIES.of(output), Linear(), torch.eye(20).bfloat16()
    with patch.object(fp32_residuals, "linear") as product:
        linear(output, weight)
        assert product.call_args.args[0] is rounded
        output.mul_(1.5)
        linear(output, weight)
        assert torch.equal(product.call_args.args[0], output.bfloat16())
        assert not torch.equal(output.bfloat16(), rounded)


def test_linear_during_inference() -> None:
    """Changes in place are not detected during inference, so the rounded output is never used."""
    with torch.inference_mode():
        output = rms_norm(torch.randn(3, 20), torch.randn(20), EPSILON, COPIES)
        for _ in range(2):
            output.mul_(1.5)
            assert torch.equal(Linear()(output, torch.eye(20).bfloat16()), output.bfloat16())


def test_gradients_of_linear_and_residual() -> None:
    """A layer uses the output in bf16, and the residual connection uses it in fp32."""
    x, weight = torch.randn(5, 20).requires_grad_(), torch.randn(20).requires_grad_()
    matrix, upstream = torch.randn(20, 20).bfloat16(), torch.randn(5, 20)
    output = rms_norm(x, weight, EPSILON)
    found = torch.autograd.grad(output + Linear()(output, matrix), (x, weight), upstream)
    up = upstream.double() + (upstream.bfloat16() @ matrix).double()
    check_gradients(found, x, weight, up, centered=False)
