"""One step on flat weights equals torch's AdamW on a model's parameters."""

import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from ftcluster_common.recipe import Training
from ftcluster_train.engine.optim.flat_step import NORM_BLOCK, FlatOptimizerStep, norm_of
from ftcluster_train.patching import fp32_residuals
from ftcluster_train.patching.kernel_mode import KernelMode
from tests.engine.drawn import ROUNDOFF, TINY, check_near, dtypes, tensors

FP32 = ROUNDOFF[torch.float32]
ADAM_STEPS = 4
OPERATIONS = 16  # operations of AdamW per element, each of which is rounded
# with few exceptions, the rounding error of a sum of n terms grows with the root of n (Higham and
# Mary 2019, "A new approach to probabilistic rounding error analysis", with their lambda)
LAMBDA = 4

gradient_sizes = st.sampled_from([1.0, 1e-6, 1e-3, 100.0])


class Parameters(nn.Module):  # type: ignore[misc]
    """A model with parameters of these shapes; vectors are biases, which have no weight decay."""

    def __init__(self, values: list[torch.Tensor]) -> None:
        super().__init__()
        for number, value in enumerate(values):
            name = f"{'weight' if value.ndim > 1 else 'bias'}_{number}"
            self.register_parameter(name, nn.Parameter(value.clone()))


@dataclass
class Adam:
    """AdamW of one parameter in fp64 (Loshchilov and Hutter 2019, algorithm 2), with its error."""

    value: torch.Tensor
    decay: float

    def __post_init__(self) -> None:
        self.first, self.size, self.second, self.error = (
            torch.zeros_like(self.value) for _ in range(4)
        )

    def step(self, gradient: torch.Tensor, number: int, settings: Any, off: float) -> None:
        """Take a step; `off` is the relative error of the gradient."""
        one, two, rate = settings.adam_beta1, settings.adam_beta2, settings.learning_rate
        self.first = one * self.first + (1 - one) * gradient
        self.size = one * self.size + (1 - one) * gradient.abs()
        self.second = two * self.second + (1 - two) * gradient**2
        scale = (self.second / (1 - two**number)).sqrt() + settings.adam_epsilon
        moved = rate / (1 - one**number) / scale
        self.value = self.value * (1 - rate * self.decay) - moved * self.first
        # v has twice the gradient's relative error, and its root half of this
        rounded = 2 * off + number * OPERATIONS * FP32
        self.error += moved * self.size * rounded + 4 * FP32 * self.value.abs()
        self.error += moved * math.sqrt(TINY)  # squares below the smallest number are lost


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
    """All steps are within their rounding error, for any shapes and sizes of gradients."""
    settings = Training(**numbers)
    net = Parameters([data.draw(tensors(shape, torch.float32)) for shape in shapes])
    exact = [
        Adam(p.detach().double(), settings.weight_decay if p.ndim > 1 else 0.0)
        for p in net.parameters()
    ]
    update = FlatOptimizerStep(net, settings, dtype, 1)
    for number in range(1, ADAM_STEPS + 1):
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
@example(22_000_000, 1.0, 0)  # a single sum in fp32 would lose 0.15 %
def test_norm(count: int, size: float, seed: int) -> None:
    values = torch.randn(count, generator=torch.Generator().manual_seed(seed)).mul_(size)
    exact = float(values.double().norm())
    # the squares of a block are summed first, then the norms of the blocks
    roundings = LAMBDA * (math.sqrt(NORM_BLOCK) + math.sqrt(1 + count / NORM_BLOCK)) + 4
    assert abs(float(norm_of(values)) - exact) <= roundings * FP32 * exact


@given(st.sampled_from([math.inf, -math.inf, math.nan]), st.integers(1, 2 * NORM_BLOCK), st.data())
def test_a_norm_shows_what_is_no_number(bad: float, count: int, data: Any) -> None:
    values = torch.zeros(count)
    values[data.draw(st.integers(0, count - 1))] = bad
    assert not norm_of(values).isfinite()


STEPS = 6


class Net(nn.Module):  # type: ignore[misc]
    """Matrices, vectors and norms of sizes that fill no cache line; `head` is tied to `words`."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(11, 7)
        self.inner = nn.Linear(7, 7)
        self.unused = nn.Linear(3, 5)
        self.frozen = nn.Linear(7, 7)
        self.frozen.requires_grad_(False)
        self.norm = nn.LayerNorm(7)
        self.head = nn.Linear(7, 11, bias=False)
        self.head.weight = self.words.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        values = self.words(tokens)
        values = values + self.inner(values).tanh() + self.frozen(values)
        found: torch.Tensor = self.head(self.norm(values))
        return found


@pytest.fixture
def net() -> Net:
    torch.manual_seed(5)
    return Net()


def batches(steps: int = STEPS) -> Iterator[torch.Tensor]:
    draw = torch.Generator().manual_seed(6)
    for _ in range(steps):
        yield torch.randint(11, (12, 5), generator=draw)


def loss_of(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    found = functional.cross_entropy(
        model(tokens).flatten(0, 1).float(), tokens.roll(1, 1).flatten(), reduction="sum"
    )
    return found / 60


def learn(
    optimizer: FlatOptimizerStep, model: nn.Module, steps: int = STEPS, parts: int = 1
) -> list[float]:
    """Train, and return the gradient norm of each step."""
    norms = []
    for tokens in batches(steps):
        micro_batches = tokens.chunk(parts)
        for part in micro_batches:
            optimizer.backward(loss_of(model, part), last=part is micro_batches[-1])
        norms.append(optimizer.step())
    return norms


def check_dtypes(net: Net, dtype: torch.dtype) -> None:
    """Check that norms are in fp32, and everything else in `dtype`."""
    for name, parameter in net.named_parameters():
        assert parameter.dtype == (torch.float32 if name.startswith("norm.") else dtype), name


def twins(net: Net, dtype: torch.dtype) -> tuple[FlatOptimizerStep, Net, FlatOptimizerStep]:
    """Return an optimizer of `net` and a copy with another optimizer, both after two steps."""
    other = copy.deepcopy(net)
    one, another = (
        FlatOptimizerStep(model, Training(learning_rate=1e-2), dtype, 1) for model in (net, other)
    )
    assert learn(one, net, steps=2) == learn(another, other, steps=2)
    return one, other, another


def test_micro_batches_sum_to_the_batch(net: Net) -> None:
    settings = Training(learning_rate=1e-2, max_grad_norm=0.1)
    other = copy.deepcopy(net)
    whole = learn(FlatOptimizerStep(net, settings, torch.float32, 1), net)
    parts = learn(FlatOptimizerStep(other, settings, torch.float32, 1), other, parts=3)
    assert parts == pytest.approx(whole, rel=1e-5)
    for (name, one), another in zip(net.named_parameters(), other.parameters(), strict=True):
        assert torch.allclose(one, another, rtol=0, atol=2e-6), name


def test_parameters_without_a_gradient_are_decayed(net: Net) -> None:
    """Adam's mean of earlier gradients moves them even in a step without a gradient."""
    rate, decay = 1e-2, 0.5
    settings = Training(learning_rate=rate, weight_decay=decay)
    optimizer = FlatOptimizerStep(net, settings, torch.float32, 1)
    before = net.unused.weight.detach().clone()
    learn(optimizer, net)
    weight = net.unused.weight.detach().clone()
    assert torch.allclose(weight, before * (1 - rate * decay) ** STEPS, atol=1e-7)
    optimizer.backward(net.unused(torch.ones(3)).sum(), last=True)
    assert optimizer.step() > 0
    for _ in range(2):
        optimizer.backward(net.words.weight.sum() * 0.0, last=True)
        assert optimizer.step() == 0.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_frozen_and_tied_weights(net: Net, dtype: torch.dtype) -> None:
    before = copy.deepcopy(net)
    optimizer = FlatOptimizerStep(net, Training(learning_rate=1e-2), dtype, 1)
    check_dtypes(net, dtype)
    learn(optimizer, net)
    optimizer.detach()
    assert torch.equal(net.frozen.weight, before.frozen.weight)
    assert torch.equal(net.frozen.bias, before.frozen.bias)
    assert net.head.weight is net.words.weight
    assert not torch.equal(net.head.weight, before.head.weight)


def test_gradients_of_rows_are_those_of_the_whole_embedding(
    net: Net, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gradients of a tied or untied embedding are summed over micro-batches."""
    net.alone = nn.Embedding(11, 7)

    def gradients_of(model: nn.Module) -> torch.Tensor:
        optimizer = FlatOptimizerStep(model, Training(), torch.bfloat16, 1)
        parts = list(batches(2))
        for tokens in parts:
            with KernelMode(context=optimizer.context):
                loss = loss_of(model, tokens) + model.alone(tokens).square().sum()
                optimizer.backward(loss, last=tokens is parts[-1])
        return optimizer.gradients.wait()

    dense = gradients_of(copy.deepcopy(net))
    monkeypatch.setattr(fp32_residuals, "MANY_ELEMENTS", 0)
    assert torch.allclose(gradients_of(net), dense, rtol=2e-2, atol=2e-3)


def test_embeddings_read_the_master_weights(net: Net) -> None:
    """The layer tied to an embedding uses the bf16 copy of the weights."""
    tokens = torch.tensor([[1, 2, 1]])
    before = net.words.weight.detach()[tokens]
    optimizer = FlatOptimizerStep(net, Training(), torch.bfloat16, 1)
    with KernelMode(context=optimizer.context):
        assert torch.equal(net.words(tokens), before)
        learn(optimizer, net)
        after = net.words(tokens).detach()
    optimizer.detach()
    assert torch.equal(after, net.words.weight[tokens])
    assert not torch.equal(after, before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_detach_and_attach_do_not_change_the_training(net: Net, dtype: torch.dtype) -> None:
    """Detach and attach can be called any number of times."""
    optimizer, other, undisturbed = twins(net, dtype)
    digest = optimizer.digest()
    for _ in range(2):
        assert optimizer.detach() is net
    assert {p.dtype for p in net.parameters()} == {torch.float32}
    storages = [p.untyped_storage() for p in net.parameters()]
    assert len({s.data_ptr() for s in storages}) == len(storages)
    for parameter, storage in zip(net.parameters(), storages, strict=True):
        assert storage.nbytes() == parameter.numel() * 4
        if parameter.requires_grad:
            parameter.data.fill_(7.0)  # this does not change the master weights
    assert optimizer.digest() == digest
    for _ in range(2):
        optimizer.attach()
    check_dtypes(net, dtype)
    assert learn(optimizer, net) == learn(undisturbed, other)
    assert optimizer.digest() == undisturbed.digest() != digest


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_loss_that_is_not_finite_changes_nothing(
    net: Net, bad: float, dtype: torch.dtype
) -> None:
    optimizer, other, undisturbed = twins(net, dtype)
    before = optimizer.digest()
    optimizer.backward(loss_of(net, next(batches())) * bad, last=True)
    assert not math.isfinite(optimizer.step())
    assert optimizer.digest() == before
    assert learn(optimizer, net) == learn(undisturbed, other)
    assert optimizer.digest() == undisturbed.digest()


def test_weights_that_were_given_back_get_their_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels may compute in the dtype of the optimizer's sums."""
    monkeypatch.setattr("ftcluster_kernels.linear.MUCH_WORK", 0)
    layer = nn.Linear(32, 64)
    optimizer = FlatOptimizerStep(layer, Training(), torch.float32, 1)
    optimizer.detach()
    optimizer.attach()
    context = optimizer.context
    assert layer.weight in context.sinks.sums
    optimizer.detach()
    del optimizer
    with KernelMode(context=context):
        layer(torch.ones(4, 32)).sum().backward()
    assert layer.weight.grad is not None
    assert torch.equal(layer.weight.grad, torch.full((64, 32), 4.0))
