"""The rate and scale of dropout masks, and that the masks are SplitMix64's numbers."""

import math

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch.nn import functional

from ftcluster_kernels import simd
from ftcluster_kernels.dropout import DROP_LEVELS, MOST_DROPPED, drop_of
from ftcluster_kernels.simd import Drop
from ftcluster_train.patching.shared_entries import DROPOUT
from tests.engine.drawn import ROUNDOFF, dtypes, seeds, tensors

pytestmark = pytest.mark.needs("avx2", "compiler")  # then the package has the loops
dropout = DROPOUT.function()
LANES = 4  # elements decided by one word of SplitMix64
# in standard deviations; one in 10^9 of all cases exceeds this
SIGMAS = 6
rates = st.floats(0, MOST_DROPPED, exclude_min=True) | st.sampled_from(
    [0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.5, 0.9]
)
counts = st.integers(0, 50_000)


def make_mask(count: int, drop: Drop) -> torch.Tensor:
    """Return the factors of dropout."""
    return simd.dropout(torch.ones(count, dtype=torch.bfloat16), drop)


def scale_of(p: float) -> float:
    return float(torch.tensor(1 / (1 - p)).bfloat16())


@given(counts, rates, seeds)
@example(50_000, MOST_DROPPED, 0)
def test_the_rate_and_the_scale(count: int, p: float, seed: int) -> None:
    made, scale = make_mask(count, drop_of(p, seed)), scale_of(p)
    assert (made.shape, made.dtype) == ((count,), torch.bfloat16)
    zeros = int((made == 0).sum())
    assert zeros + int((made == scale).sum()) == count
    # the probability is quantized, and the scale makes the mean exactly 1
    rate = 1 - 1 / scale if scale > 1 else p
    off = (
        math.sqrt(rate * (1 - rate) / max(count, 1)) * SIGMAS
        + 0.5 / DROP_LEVELS
        + SIGMAS / (count + 1)
    )
    assert abs(zeros - rate * count) <= off * count
    # the probability is near p, and the scale is 1 / (1 - p), rounded to bf16
    assert abs(rate - p) <= (1 - p) * 2 * ROUNDOFF[torch.bfloat16] + 1e-12


@given(counts, rates, seeds, st.integers(0, 100))
def test_a_mask_follows_from_its_seed(count: int, p: float, seed: int, more: int) -> None:
    made = make_mask(count, drop_of(p, seed))
    assert torch.equal(make_mask(count, drop_of(p, seed)), made)
    assert torch.equal(make_mask(count + more, drop_of(p, seed))[:count], made)


def splitmix64(seed: int, counter: int) -> int:
    """Return splitmix64 of a counter (Steele, Lea and Flood 2014, figure 15), in whole numbers."""
    whole = (1 << 64) - 1
    value = (seed + counter * 0x9E3779B97F4A7C15) & whole
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & whole
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & whole
    return value ^ (value >> 31)


@given(rates, seeds, st.lists(st.integers(0, 300_000), min_size=1, max_size=20))
def test_each_element_is_decided_on_by_its_counter(p: float, seed: int, places: list[int]) -> None:
    """An element's counter decides about the element, even in a mask longer than one chunk."""
    made, scale = make_mask(max(places) + 1, drop_of(p, seed)), scale_of(p)
    share = 1 - 1 / scale if scale > 1 else p
    for place in places:
        lane = splitmix64(seed, place // LANES) >> 16 * (place % LANES) & 0xFFFF
        number = (lane ^ 0x8000) / DROP_LEVELS  # uniform: the lane is signed
        assert made[place] == (scale if number >= round(share * DROP_LEVELS) / DROP_LEVELS else 0)


@given(st.lists(st.integers(0, 6), max_size=4), dtypes, rates, st.integers(0, 2**32), st.data())
def test_outputs_and_gradients(
    shape: list[int], dtype: torch.dtype, p: float, seed: int, data: st.DataObject
) -> None:
    """Each element and its gradient are 0, or are multiplied by the scale."""
    values = data.draw(tensors(shape, dtype)).requires_grad_()
    upstream = data.draw(tensors(shape, dtype))
    torch.manual_seed(seed)
    found = dropout(values, p)
    (gradient,) = torch.autograd.grad(found, values, upstream)
    assert (found.shape, found.dtype, gradient.dtype) == (values.shape, dtype, dtype)
    torch.manual_seed(seed)
    mask = torch.autograd.grad(dropout(values, p), values, torch.ones_like(values))[0]
    assert set(mask.unique().tolist()) <= {0.0, scale_of(p)}
    # the product of two numbers that are each rounded once is otherwise exact
    assert torch.equal(found, (values.double() * mask.double()).to(dtype))
    assert torch.equal(gradient, (upstream.double() * mask.double()).to(dtype))


def test_the_mask_follows_from_the_default_generator() -> None:
    values = torch.randn(1000)
    made = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        made.append(dropout(values, 0.3))
    assert torch.equal(made[0], made[1])
    assert not torch.equal(made[0], made[2])
    assert not torch.equal(made[2], dropout(values, 0.3))


def test_the_number_of_threads_changes_nothing() -> None:
    count = 100 * simd.FEW_ELEMENTS + 2
    made, before = [], torch.get_num_threads()
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        made.append(make_mask(count, drop_of(0.2, seed=4)))
    torch.set_num_threads(before)
    assert torch.equal(made[0], made[1])
    assert torch.equal(made[0], made[2])


def test_what_is_not_dropped_is_the_input_itself() -> None:
    values = torch.randn(100)
    assert dropout(values, 0.5, training=False) is values
    assert dropout(values, 0.0) is values


def test_what_torch_does() -> None:
    values = torch.randn(1000)
    assert not dropout(values, 1.0).any()
    for dtype, inplace in ((torch.float32, True), (torch.float64, False), (torch.float16, False)):
        made = []
        for function in (dropout, functional.dropout):
            torch.manual_seed(8)
            own = values.to(dtype, copy=True)
            made.append(function(own, 0.5, True, inplace))
            assert (made[-1] is own) == inplace
        assert torch.equal(made[0], made[1])
