"""Properties of the update: AdamW and the gradients' norm as in fp64, but for their roundings."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import nn

from ftcluster_common.recipe import Training
from ftcluster_train.optim.optimizer_step import NORM_BLOCK, FlatOptimizerStep, norm_of
from tests.engine.drawn import ROUNDOFF, TINY, check_near, dtypes, tensors

FP32 = ROUNDOFF[torch.float32]
STEPS = 4
OPERATIONS = 16  # of AdamW for an element, each rounded
# sums of n terms are off by the root of n roundings, but for one case in many (Higham and Mary
# 2019, "A new approach to probabilistic rounding error analysis", with their lambda)
LAMBDA = 4

gradient_sizes = st.sampled_from([1.0, 1e-6, 1e-3, 100.0])


class Net(nn.Module):  # type: ignore[misc]
    """Parameters of these shapes; vectors are biases, which are not decayed."""

    def __init__(self, values: list[torch.Tensor]) -> None:
        super().__init__()
        for number, value in enumerate(values):
            name = f"{'weight' if value.ndim > 1 else 'bias'}_{number}"
            self.register_parameter(name, nn.Parameter(value.clone()))


@dataclass
class Adam:
    """AdamW of one parameter in fp64 (Loshchilov and Hutter 2019, algorithm 2), and its error."""

    value: torch.Tensor
    decay: float

    def __post_init__(self) -> None:
        self.first, self.size, self.second, self.error = (
            torch.zeros_like(self.value) for _ in range(4)
        )

    def step(self, gradient: torch.Tensor, number: int, settings: Any, off: float) -> None:
        """`off` is the relative error of the gradient."""
        one, two, rate = settings.adam_beta1, settings.adam_beta2, settings.learning_rate
        self.first = one * self.first + (1 - one) * gradient
        self.size = one * self.size + (1 - one) * gradient.abs()
        self.second = two * self.second + (1 - two) * gradient**2
        scale = (self.second / (1 - two**number)).sqrt() + settings.adam_epsilon
        moved = rate / (1 - one**number) / scale
        self.value = self.value * (1 - rate * self.decay) - moved * self.first
        # v is off by twice what the gradient is, its root by half of that
        rounded = 2 * off + number * OPERATIONS * FP32
        self.error += moved * self.size * rounded + 4 * FP32 * self.value.abs()
        self.error += moved * math.sqrt(TINY)  # squares below the least number are lost


@given(
    st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=2), min_size=1, max_size=4),
    dtypes,
    st.fixed_dictionaries(
        {
            "learning_rate": st.sampled_from([1e-5, 1e-3, 0.1]),
            "weight_decay": st.sampled_from([0.0, 0.01, 0.5]),
            "adam_beta1": st.sampled_from([0.0, 0.5, 0.9]),
            "adam_beta2": st.sampled_from([0.9, 0.95, 0.999]),
            "adam_epsilon": st.sampled_from([1e-8, 1e-6, 1e-3]),
            "max_grad_norm": st.sampled_from([0.0, 1e-3, 1.0, 1e6]),
        }
    ),
    st.data(),
)
def test_adamw(
    shapes: list[list[int]], dtype: torch.dtype, numbers: dict[str, float], data: Any
) -> None:
    """Whatever the shapes and the size of gradients; all steps are within their roundings."""
    settings = Training(**numbers)
    net = Net([data.draw(tensors(shape, torch.float32)) for shape in shapes])
    exact = [
        Adam(p.detach().double(), settings.weight_decay if p.ndim > 1 else 0.0)
        for p in net.parameters()
    ]
    update = FlatOptimizerStep(net, settings, dtype, 1)
    for number in range(1, STEPS + 1):
        given = [data.draw(tensors(s, torch.bfloat16, gradient_sizes)).float() for s in shapes]
        loss = sum((p.float() * g).sum() for p, g in zip(net.parameters(), given, strict=True))
        update.backward(loss, last=True)
        norm = update.step()
        wanted = math.sqrt(sum(float(g.double().square().sum()) for g in given))
        of_norm = (sum(g.numel() for g in given) + 4) * FP32
        assert abs(norm - wanted) <= of_norm * wanted + math.sqrt(TINY)
        limit = settings.max_grad_norm
        clipped = max(1.0, wanted / limit) if limit else 1.0
        for one, gradient in zip(exact, given, strict=True):
            one.step(gradient.double() / clipped, number, settings, of_norm + 2 * FP32)
        for parameter, one in zip(net.parameters(), exact, strict=True):
            rounded = one.error + (ROUNDOFF[dtype] * one.value.abs() * (dtype != torch.float32))
            check_near(parameter, one.value, rounded * (1 + ROUNDOFF[dtype]))
    update.detach()
    for parameter, one in zip(net.parameters(), exact, strict=True):
        assert parameter.dtype == torch.float32
        check_near(parameter, one.value, one.error)


@given(
    st.integers(0, 3 * NORM_BLOCK)
    | st.sampled_from([0, 1, NORM_BLOCK - 1, NORM_BLOCK, NORM_BLOCK + 1, 2 * NORM_BLOCK]),
    st.sampled_from([1.0, 1e-12, 1e-3, 1e12]),
    st.integers(0, 2**32),
)
@example(22_000_000, 1.0, 0)  # one sum in fp32 loses 0.15 % of them
def test_norm(count: int, size: float, seed: int) -> None:
    values = torch.randn(count, generator=torch.Generator().manual_seed(seed)).mul_(size)
    exact = float(values.double().norm())
    # the squares of a block are summed, and then those of the blocks' norms
    roundings = LAMBDA * (math.sqrt(NORM_BLOCK) + math.sqrt(1 + count / NORM_BLOCK)) + 4
    assert abs(float(norm_of(values)) - exact) <= roundings * FP32 * exact


@given(st.sampled_from([math.inf, -math.inf, math.nan]), st.integers(1, 2 * NORM_BLOCK), st.data())
def test_a_norm_shows_what_is_no_number(bad: float, count: int, data: Any) -> None:
    values = torch.zeros(count)
    values[data.draw(st.integers(0, count - 1))] = bad
    assert not norm_of(values).isfinite()
