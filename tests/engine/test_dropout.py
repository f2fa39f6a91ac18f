"""The dropout masks are random in each way that a training could notice."""

import itertools
import math
from collections.abc import Iterator

import pytest
import torch
from torch.nn import functional

from ftcluster_train.kernels.dropout import CHUNK, LANES, dropout, make_mask

COUNT = 10_000_000
SIGMAS = 5
RATES = (0.05, 0.1, 0.2, 0.5, 0.9)


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def documented(p: float) -> tuple[float, float]:
    """The probability of 0 and the other number, as the docstring of `make_mask` has them."""
    other = torch.tensor(1 / (1 - p)).bfloat16().item()
    return 1 - 1 / other, other


@pytest.mark.parametrize("p", RATES)
def test_share_of_zeros_and_mean(p: float) -> None:
    rate, other = documented(p)
    assert rate == pytest.approx(p, abs=0.005)
    made = make_mask(COUNT, p, seed=1)
    assert made.dtype == torch.bfloat16
    zeros = int((made == 0).sum())
    assert zeros + int((made == other).sum()) == COUNT
    # a probability is given in steps of 2^-16, half of which is allowed on top
    sigma = math.sqrt(rate * (1 - rate) / COUNT)
    assert abs(zeros / COUNT - rate) < SIGMAS * sigma + 2**-17
    mean = (COUNT - zeros) * other / COUNT
    assert abs(mean - 1) < other * (SIGMAS * sigma + 2**-17)


def test_a_tenth_is_the_probability_that_is_documented() -> None:
    assert documented(0.1)[0] == pytest.approx(0.0986, abs=5e-5)


def correlation(a: torch.Tensor, b: torch.Tensor) -> float:
    """In standard deviations of that of independent ones."""
    a, b = a.double() - a.double().mean(), b.double() - b.double().mean()
    return float((a * b).mean() / (a.std() * b.std()) * math.sqrt(len(a)))


@pytest.mark.parametrize("p", [0.1, 0.5])
def test_lanes_and_neighbours_do_not_know_of_each_other(p: float) -> None:
    zeros = (make_mask(4_000_000, p, seed=2) == 0).view(-1, LANES)
    for one, other in itertools.combinations(range(LANES), 2):
        assert abs(correlation(zeros[:, one], zeros[:, other])) < SIGMAS
    for one, other in itertools.product(range(LANES), repeat=2):
        for distance in (1, 2, 64, CHUNK):
            near, far = zeros[:-distance, one], zeros[distance:, other]
            assert abs(correlation(near, far)) < SIGMAS


def test_the_four_lanes_together() -> None:
    """Chi-square over the 16 patterns of a word, of 15 degrees of freedom."""
    count, p = 4_000_000, 0.5
    zeros = (make_mask(count, p, seed=3) == 0).view(-1, LANES).long()
    patterns = (zeros * torch.tensor([1, 2, 4, 8])).sum(1)
    found = torch.bincount(patterns, minlength=16).double()
    expected = count / LANES / 16
    chi_square = float(((found - expected) ** 2 / expected).sum())
    assert chi_square < 15 + SIGMAS * math.sqrt(2 * 15)


@pytest.mark.parametrize("other", [6, 7 + 2**32, -7, 2**63 - 1, -(2**63)])
def test_other_seeds_give_other_masks(other: int) -> None:
    one, another = (make_mask(400_000, 0.5, seed) == 0 for seed in (7, other))
    assert abs(correlation(one, another)) < SIGMAS
    assert torch.equal(one, make_mask(400_000, 0.5, 7) == 0)


def test_the_mask_follows_from_the_default_generator() -> None:
    values = torch.randn(1000)
    made = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        made.append(dropout(values, 0.3))
    assert torch.equal(made[0], made[1])
    assert not torch.equal(made[0], made[2])
    assert not torch.equal(made[2], dropout(values, 0.3))


@pytest.mark.usefixtures("threads")
def test_the_number_of_threads_changes_nothing() -> None:
    count = 3 * CHUNK * LANES + 2  # more than a stream holds, whatever the threads are
    made = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        made.append(make_mask(count, 0.2, seed=4))
    assert torch.equal(made[0], made[1])
    assert torch.equal(made[0], made[2])


@pytest.mark.parametrize("count", [1, 3, 5, 4 * 1000 + 3])
def test_counts_that_fill_no_word(count: int) -> None:
    assert torch.equal(make_mask(count, 0.5, seed=5), make_mask(4 * count, 0.5, seed=5)[:count])


@pytest.mark.usefixtures("threads")
def test_a_mask_that_is_larger_than_a_stream_does_not_repeat() -> None:
    torch.set_num_threads(1)
    stream = CHUNK * LANES
    first, second = (make_mask(2 * stream, 0.5, seed=6) == 0).view(2, stream)
    assert abs(correlation(first, second)) < SIGMAS


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_gradient_is_the_mask(dtype: torch.dtype) -> None:
    values = torch.randn(8, 33, dtype=dtype, requires_grad=True)
    dropped = dropout(values, 0.25)
    assert dropped.dtype == dtype
    dropped.sum().backward()
    assert values.grad is not None
    assert torch.equal(dropped, values * values.grad)
    assert set(values.grad.unique().tolist()) == {0.0, documented(0.25)[1]}


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
