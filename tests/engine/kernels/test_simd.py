"""The C loops compute the same as torch's functions."""

import math

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch.nn import functional

from ftcluster_kernels import simd
from ftcluster_kernels.activations import activate
from ftcluster_kernels.dropout import drop_of
from ftcluster_kernels.simd import Drop
from tests.engine.drawn import DTYPES, LIBRARIES, check_near, dtypes, seeds, unit

pytestmark = pytest.mark.needs("avx2", "compiler")  # then the package has the loops
rates = st.sampled_from([0.05, 0.1, 0.5, 0.9])
rows = st.integers(1, 300)
columns = st.integers(1, 200) | st.sampled_from([simd.LONGEST - 1, simd.LONGEST])
threads = st.sampled_from([1, 2, 3])


@pytest.fixture(autouse=True, scope="module")
def few_elements() -> object:
    """Use all threads even for few elements; restore the number afterwards."""
    before = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simd, "FEW_ELEMENTS", 0)
        yield
    torch.set_num_threads(before)


def test_the_package_has_them() -> None:
    assert simd.is_available()


def make_mask(count: int, drop: Drop) -> torch.Tensor:
    """Return the factors of dropout in bf16; test_dropout compares them with SplitMix64."""
    return simd.dropout(torch.ones(count, dtype=torch.bfloat16), drop)


def test_strides_are_refused() -> None:
    with pytest.raises(ValueError, match=r"strides \(1, 3, 12\)"):
        simd.softmax_(torch.zeros(4, 4, 3).permute(2, 1, 0), 0, None)


def test_dropout_of_what_is_not_contiguous_and_of_special_numbers() -> None:
    values = torch.tensor([torch.inf, torch.nan, -0.0, 1e-45, 3e38] * 40).view(20, 10)
    drop = drop_of(0.5, 3)
    for dtype in (torch.float32, torch.bfloat16):
        own = values.to(dtype).T
        wanted = own * make_mask(own.numel(), drop).view(own.shape)
        torch.testing.assert_close(simd.dropout(own, drop), wanted, rtol=0, atol=0, equal_nan=True)


@given(rows, columns, dtypes, st.sampled_from([0, 0, 1, 3]), rates | st.none(), seeds, threads)
@example(6, 4, torch.bfloat16, 1, None, 0, 1)
def test_softmax_and_its_gradient(
    rows: int,
    columns: int,
    dtype: torch.dtype,
    per_key: int,
    p: float | None,
    seed: int,
    threads: int,
) -> None:
    torch.set_num_threads(threads)
    rows = max(1, min(rows, 30_000 // columns))
    if per_key:
        # the last keys belong to the last queries
        rows = max(min(rows // per_key, columns), 1) * per_key
    numbers = torch.Generator().manual_seed(seed % (1 << 32))
    scores = (torch.randn(2, rows, columns, generator=numbers) * 5).to(dtype)
    if not per_key:
        scores[torch.rand(scores.shape, generator=numbers) < 0.1] = -1e30
    grad = torch.randn(scores.shape, generator=numbers).to(dtype)
    drop = None if p is None else drop_of(p, seed)
    mask = torch.ones(()) if drop is None else make_mask(scores.numel(), drop).view(scores.shape)

    probabilities = scores.clone()
    dropped = simd.softmax_(probabilities, per_key, drop)
    seen = torch.ones(rows, columns, dtype=torch.bool)
    if per_key:
        last = columns - rows // per_key
        seen = torch.arange(columns) <= last + torch.arange(rows).unsqueeze(1) // per_key
    wanted = torch.softmax(scores.double().masked_fill(~seen, -torch.inf), -1)
    # half a unit in the last place of bf16, and the roundings in fp32: of the largest difference of
    # scores, of its exponential and of a sum over lanes
    off = 2**-7.99 if dtype == torch.bfloat16 else unit(dtype, 40 + columns // 16)
    torch.testing.assert_close(probabilities.double(), wanted, rtol=off, atol=1e-30)
    assert not probabilities[~seen.expand(scores.shape)].any()
    assert torch.equal(dropped, probabilities * mask)

    of_scores = grad.clone()
    simd.softmax_backward_(of_scores, probabilities, per_key, drop)
    of_dropped, shares = grad.double() * mask, probabilities.double()
    wanted = shares * (of_dropped - (of_dropped * shares).sum(-1, keepdim=True))
    largest = (grad.double() * mask).abs().amax()
    torch.testing.assert_close(of_scores.double(), wanted, rtol=off, atol=float(largest) * 1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
def test_scores_that_are_not_finite(dtype: torch.dtype) -> None:
    scores = torch.zeros(4, 70, dtype=dtype)
    scores[0, 69], scores[1, 3], scores[2, 40] = torch.nan, torch.inf, -torch.inf
    scores[3] = -torch.inf
    for drop in (None, Drop(0, -(1 << 15), 1.0)):
        found = scores.clone()
        simd.softmax_(found, 0, drop)
        torch.testing.assert_close(found, torch.softmax(scores, -1), equal_nan=True)


FORMULAS = {
    # torch's functions lose the tails to 1 - 1, even in fp64
    "gelu": lambda x: x * torch.special.erfc(-x * 0.5**0.5) / 2,
    "tanh_gelu": lambda x: x * torch.sigmoid((2 / math.pi) ** 0.5 * 2 * (x + 0.044715 * x**3)),
    "silu": functional.silu,
    "relu": torch.relu,
}
# error of the gate: the error of the polynomials in native/activations.c
FITTED = {torch.bfloat16: 6e-5, torch.float32: 6e-8}
UNDERFLOW = 1e-34  # a gate below 2^-126 is 0, and so is its derivative


@given(st.sampled_from([*FORMULAS]), dtypes, st.integers(0, 5000), st.booleans(), seeds, threads)
def test_activations_and_their_gradients(
    name: str, dtype: torch.dtype, count: int, gated: bool, seed: int, threads: int
) -> None:
    torch.set_num_threads(threads)
    numbers = torch.Generator().manual_seed(seed % (1 << 32))
    size = float(torch.rand((), generator=numbers)) * 10
    x, factor, grad = (torch.randn(3, count, generator=numbers) * size).to(dtype)
    by = factor if gated else None

    inputs = [one.double().requires_grad_() for one in (x, factor)]
    activated = FORMULAS[name](inputs[0])
    wanted = activated * inputs[1] if gated else activated
    exact = torch.autograd.grad(wanted, inputs[: 1 + gated], grad.double())
    found = activate(name, x, by)
    # an exponential has the error of its argument: -x^2 / 2, or 2 sqrt(2 / pi) (x + ...)
    steep = 1 if name == "silu" else x.double().square() + 1
    u = unit(dtype, 12) + FITTED[dtype] + 4 * unit(torch.float32) * steep
    check_near(found, wanted.detach(), u * wanted.detach().abs() + UNDERFLOW)

    of_x, of_factor = simd.activation_backward(name, grad, x, by)
    scale = (grad * (factor if gated else 1)).double().abs()
    # gate + x * its derivative, which have opposite signs
    gate = torch.where(x == 0, 0.5, activated.detach() / x.double())
    parts = gate + (exact[0] / torch.where(scale == 0, 1, scale)).abs() + gate
    check_near(of_x, exact[0], u * scale * parts + UNDERFLOW * scale)
    if gated and of_factor is not None:
        check_near(of_factor, exact[1], u * exact[1].abs() + UNDERFLOW)


@given(st.sampled_from([*FORMULAS]), st.integers(0, 5000), st.booleans(), rates, seeds, threads)
def test_an_activation_with_dropout(
    name: str, count: int, gated: bool, rate: float, seed: int, threads: int
) -> None:
    """In fp32, the loop rounds like the activation and its dropout one after the other."""
    torch.set_num_threads(threads)
    x, factor, grad = torch.randn(3, count, generator=torch.Generator().manual_seed(seed % 2**32))
    drop, by = drop_of(rate, seed), factor if gated else None
    mask = simd.mask_of(drop, count)
    plain = simd.activation(name, x, by)
    assert torch.equal(simd.activation(name, x, by, drop), simd.dropout(plain, drop))
    found = simd.activation_backward(name, grad, x, by, drop)
    wanted = simd.activation_backward(name, grad * mask, x, by)
    assert torch.equal(found[0], wanted[0])
    assert found[1] is wanted[1] is None or torch.equal(found[1], wanted[1])


@pytest.mark.parametrize("dtype", DTYPES)
def test_activations_of_special_numbers(dtype: torch.dtype) -> None:
    values = torch.tensor([torch.inf, torch.nan, -0.0, 0.0, 1e-30, -60.0, 60.0, 3e38] * 5)
    values = values.to(dtype)
    for name, formula in FORMULAS.items():
        wanted = formula(values.double()).to(dtype)
        torch.testing.assert_close(activate(name, values), wanted, equal_nan=True)


@given(st.integers(0, 70), st.integers(1, 100), dtypes, threads, seeds)
def test_sums_of_columns(
    rows: int, columns: int, dtype: torch.dtype, threads: int, seed: int
) -> None:
    torch.set_num_threads(threads)
    values = torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed % 1000))
    values = values.to(dtype)
    exact, most = values.double().sum(0), values.double().abs().sum(0)
    bound = unit(dtype) * exact.abs() + unit(torch.float32, rows) * most
    check_near(simd.column_sums(values), exact, bound)


@given(rows, st.integers(1, 3000), dtypes, st.integers(0, 70), st.booleans(), seeds, threads)
def test_cross_entropy_and_its_gradient(
    rows: int,
    columns: int,
    dtype: torch.dtype,
    padding: int,
    weighted: bool,
    seed: int,
    threads: int,
) -> None:
    torch.set_num_threads(threads)
    rows = max(1, min(rows, 30_000 // columns))
    numbers = torch.Generator().manual_seed(seed % (1 << 32))
    logits = (torch.randn(rows, columns + padding, generator=numbers) * 5).to(dtype)
    targets = torch.randint(columns, (rows,), generator=numbers)
    factors = torch.randn(rows, generator=numbers) if weighted else None

    wanted = logits[:, :columns].double().requires_grad_()
    losses = functional.cross_entropy(wanted, targets, reduction="none")
    losses.backward(torch.ones(rows) if factors is None else factors)

    found = simd.cross_entropy_(logits, targets, columns, factors)
    torch.testing.assert_close(found, losses.detach().float(), rtol=1e-5, atol=1e-5)
    assert not logits[:, columns:].any()
    # bf16 rounds to 2^-9 of a number
    off = 2**-8 if dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(
        logits[:, :columns].float(), wanted.grad.float(), rtol=off, atol=1e-6
    )


def test_cross_entropy_of_what_diverged_and_of_wrong_targets() -> None:
    logits = torch.zeros(3, 40, dtype=torch.bfloat16)
    logits[0, 7] = torch.nan
    logits[1, 39] = torch.inf
    targets = torch.tensor([0, 5, 39])
    losses = simd.cross_entropy_(logits, targets, 40)
    assert losses.isnan().tolist() == [True, True, False]
    assert logits.isnan().any(-1).tolist() == [True, True, False]
    for wrong in (-1, 40):
        with pytest.raises(IndexError, match="must be from 0 to 39"):
            simd.cross_entropy_(logits, torch.tensor([0, wrong, 1]), 40)


@given(st.integers(0, 70_000), seeds, threads)
@example(1 << 16, 0, 2)
def test_widen(count: int, seed: int, threads: int) -> None:
    torch.set_num_threads(threads)
    torch.manual_seed(seed)
    values, output = torch.randn(count).bfloat16(), torch.full((count + 16,), 7.0)
    simd.widen(values, output[:count])
    assert torch.equal(output[:count], values.float())
    assert (output[count:] == 7).all()


@pytest.mark.parametrize(
    ("limit", "expected"),
    [("", LIBRARIES[0]), ("avx512", LIBRARIES[0]), ("avx2", "libavx2.so"), ("default", None)],
)
def test_a_limit_for_torch_is_one_for_the_loops(
    limit: str, expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", limit)
    path = simd.library_path()
    assert (path and path.name) == expected
