"""The loops of avx512.c compute what torch's functions compute."""

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch.nn import functional

from ftcluster_train.kernels import avx512
from ftcluster_train.kernels.avx512 import Drop
from ftcluster_train.kernels.dropout import drop_of, make_mask
from ftcluster_train.kernels.private_torch import softmax_backward
from tests.engine.drawn import dtypes, seeds

pytestmark = pytest.mark.skipif(not avx512.is_supported(), reason="this CPU has no AVX-512")
rates = st.sampled_from([0.05, 0.1, 0.5, 0.9])
rows = st.integers(1, 300)
columns = st.integers(1, 200) | st.sampled_from([avx512.LONGEST - 1, avx512.LONGEST])
threads = st.sampled_from([1, 2, 3])


@pytest.fixture(autouse=True, scope="module")
def _few() -> object:
    """All threads, also for few elements; as many as before afterwards."""
    before = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(avx512, "FEW_ELEMENTS", 0)
        yield
    torch.set_num_threads(before)


def test_the_package_has_them() -> None:
    assert avx512.is_available()


@given(st.integers(0, 30_000), dtypes, rates, seeds, threads)
@example(1 << 16, torch.bfloat16, 0.1, 0, 2)
def test_dropout(count: int, dtype: torch.dtype, p: float, seed: int, threads: int) -> None:
    torch.set_num_threads(threads)
    values, drop = torch.randn(count).to(dtype), drop_of(p, seed)
    assert torch.equal(avx512.dropout(values, drop), values * make_mask(count, drop))


def test_dropout_of_what_is_not_contiguous_and_of_special_numbers() -> None:
    values = torch.tensor([torch.inf, torch.nan, -0.0, 1e-45, 3e38] * 40).view(20, 10)
    drop = drop_of(0.5, 3)
    for dtype in (torch.float32, torch.bfloat16):
        own = values.to(dtype).T
        wanted = own * make_mask(own.numel(), drop).view(own.shape)
        torch.testing.assert_close(
            avx512.dropout(own, drop), wanted, rtol=0, atol=0, equal_nan=True
        )


@given(rows, columns, rates, seeds, threads)
def test_softmax_and_its_gradient(
    rows: int, columns: int, p: float, seed: int, threads: int
) -> None:
    torch.set_num_threads(threads)
    rows = max(1, min(rows, 30_000 // columns))
    numbers = torch.Generator().manual_seed(seed % (1 << 32))
    scores = (torch.randn(rows, columns, generator=numbers) * 5).bfloat16()
    scores[torch.rand(rows, columns, generator=numbers) < 0.1] = -1e30
    grad = torch.randn(rows, columns, generator=numbers).bfloat16()
    drop = drop_of(p, seed)
    mask = make_mask(rows * columns, drop).view(rows, columns)

    probabilities = scores.clone()
    dropped = avx512.softmax_dropout_(probabilities, drop)
    wanted = torch.softmax(scores.double(), -1)
    # half a unit in the last place of bf16, and fp32's roundings
    torch.testing.assert_close(probabilities.double(), wanted, rtol=2**-7.99, atol=1e-30)
    assert torch.equal(dropped, probabilities * mask)

    of_scores = grad.clone()
    avx512.softmax_dropout_backward_(of_scores, probabilities, drop)
    wanted = softmax_backward(grad.double() * mask, probabilities.double())
    largest = (grad.double() * mask).abs().amax()
    torch.testing.assert_close(
        of_scores.double(), wanted, rtol=2**-7.99, atol=float(largest) * 1e-5
    )


def test_scores_that_are_not_finite() -> None:
    scores = torch.zeros(4, 70).bfloat16()
    scores[0, 69], scores[1, 3], scores[2, 40] = torch.nan, torch.inf, -torch.inf
    scores[3] = -torch.inf
    found = scores.clone()
    avx512.softmax_dropout_(found, Drop(0, -(1 << 15), 1.0))
    torch.testing.assert_close(found, torch.softmax(scores, -1), equal_nan=True)


@given(rows, st.integers(1, 3000), st.integers(0, 70), st.booleans(), seeds, threads)
def test_cross_entropy_and_its_gradient(
    rows: int, columns: int, padding: int, weighted: bool, seed: int, threads: int
) -> None:
    torch.set_num_threads(threads)
    rows = max(1, min(rows, 30_000 // columns))
    numbers = torch.Generator().manual_seed(seed % (1 << 32))
    logits = (torch.randn(rows, columns + padding, generator=numbers) * 5).bfloat16()
    targets = torch.randint(columns, (rows,), generator=numbers)
    factors = torch.randn(rows, generator=numbers) if weighted else None

    wanted = logits[:, :columns].double().requires_grad_()
    losses = functional.cross_entropy(wanted, targets, reduction="none")
    losses.backward(torch.ones(rows) if factors is None else factors)

    found = avx512.cross_entropy_(logits, targets, columns, factors)
    torch.testing.assert_close(found, losses.detach().float(), rtol=1e-5, atol=1e-5)
    assert not logits[:, columns:].any()
    # bf16 rounds to 2^-9 of a number
    torch.testing.assert_close(
        logits[:, :columns].float(), wanted.grad.float(), rtol=2**-8, atol=1e-6
    )


def test_cross_entropy_of_what_diverged_and_of_wrong_targets() -> None:
    logits = torch.zeros(3, 40, dtype=torch.bfloat16)
    logits[0, 7] = torch.nan
    logits[1, 39] = torch.inf
    targets = torch.tensor([0, 5, 39])
    losses = avx512.cross_entropy_(logits, targets, 40)
    assert losses.isnan().tolist() == [True, True, False]
    assert logits.isnan().any(-1).tolist() == [True, True, False]
    for wrong in (-1, 40):
        with pytest.raises(IndexError, match="of 40 columns"):
            avx512.cross_entropy_(logits, torch.tensor([0, wrong, 1]), 40)
