"""One learning step on flat weights is torch's AdamW on a model's parameters."""

import copy
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from ftcluster_common.recipe import Training
from ftcluster_train.kernels.function_overrides import FunctionOverrides
from ftcluster_train.optim.optimizer_step import FlatOptimizerStep
from tests.engine.models import VOCABULARY, make_model

STEPS = 6


class Net(nn.Module):  # type: ignore[misc]
    """Matrices, vectors and norms, of sizes that fill no cache line; `head` is tied to `words`."""

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
    update: FlatOptimizerStep, model: nn.Module, steps: int = STEPS, parts: int = 1
) -> list[float]:
    norms = []
    for tokens in batches(steps):
        cut = tokens.chunk(parts)
        for part in cut:
            update.backward(loss_of(model, part), last=part is cut[-1])
        norms.append(update.step())
    return norms


def reference(model: nn.Module, steps: int = STEPS, **settings: Any) -> list[float]:
    """The same with what torch has for it."""
    chosen = Training(**settings)
    parameters = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": chosen.weight_decay},
        {"params": [p for p in parameters if p.ndim == 1], "weight_decay": 0.0},
    ]
    betas = (chosen.adam_beta1, chosen.adam_beta2)
    adamw = torch.optim.AdamW(groups, lr=chosen.learning_rate, betas=betas, eps=chosen.adam_epsilon)
    norms = []
    for tokens in batches(steps):
        adamw.zero_grad()
        loss_of(model, tokens).backward()
        for parameter in parameters:
            # without one AdamW would not decay it, which the ranks of a cluster cannot tell apart
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        norm = nn.utils.clip_grad_norm_(parameters, chosen.max_grad_norm or math.inf)
        norms.append(float(norm))
        adamw.step()
    return norms


def check_same(one: nn.Module, other: nn.Module, tolerance: float = 2e-6) -> None:
    for (name, a), b in zip(one.named_parameters(), other.parameters(), strict=True):
        assert torch.allclose(a, b, rtol=0, atol=tolerance), name


def check_types(net: Net, dtype: torch.dtype) -> None:
    """Norms are in fp32, everything else in `dtype`."""
    for name, parameter in net.named_parameters():
        assert parameter.dtype == (torch.float32 if name.startswith("norm.") else dtype), name


SETTINGS: dict[str, dict[str, Any]] = {
    "clipped": {"max_grad_norm": 0.1},
    "below the limit": {"max_grad_norm": 100.0},
    "without a limit": {"max_grad_norm": 0.0},
    "decayed": {"weight_decay": 0.5},
    "other betas": {"adam_beta1": 0.5, "adam_beta2": 0.9, "adam_epsilon": 1e-3},
}


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_steps_are_those_of_adamw(net: Net, settings: dict[str, Any], parts: int) -> None:
    settings = {"learning_rate": 1e-2, **settings}
    plain = copy.deepcopy(net)
    wanted = reference(plain, **settings)
    update = FlatOptimizerStep(net, Training(**settings), torch.float32, 1)
    norms = learn(update, net, parts=parts)
    assert norms == pytest.approx(wanted, rel=1e-5)
    if settings.get("max_grad_norm") == 0.1:
        assert min(norms) > 0.2
    check_same(net, plain)


def test_only_matrices_are_decayed(net: Net) -> None:
    """What no loss depends on shows it: its gradient is zero."""
    before = copy.deepcopy(net)
    rate, decay = 1e-2, 0.5
    update = FlatOptimizerStep(
        net, Training(learning_rate=rate, weight_decay=decay), torch.float32, 1
    )
    learn(update, net)
    left = (1 - rate * decay) ** STEPS
    assert torch.allclose(net.unused.weight, before.unused.weight * left, atol=1e-7)
    assert torch.equal(net.unused.bias, before.unused.bias)


def test_a_layer_that_was_used_only_once(net: Net) -> None:
    """Its gradient of an earlier step is gone."""
    update = FlatOptimizerStep(net, Training(learning_rate=1e-2), torch.float32, 1)
    tokens = next(batches())
    update.backward(loss_of(net, tokens) + net.unused(torch.ones(3)).sum(), last=True)
    with_it = update.step()
    weight = net.unused.weight.detach().clone()
    for _ in range(2):
        update.backward(net.words.weight.sum() * 0.0, last=True)
        assert update.step() == 0.0
    assert with_it > 0
    # Adam's mean goes on moving it, the less the longer ago
    assert not torch.equal(net.unused.weight, weight)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_frozen_and_tied_weights(net: Net, dtype: torch.dtype) -> None:
    before = copy.deepcopy(net)
    update = FlatOptimizerStep(net, Training(learning_rate=1e-2), dtype, 1)
    check_types(net, dtype)
    learn(update, net)
    update.detach()
    assert torch.equal(net.frozen.weight, before.frozen.weight)
    assert torch.equal(net.frozen.bias, before.frozen.bias)
    assert net.head.weight is net.words.weight
    assert not torch.equal(net.head.weight, before.head.weight)


def test_an_embedding_gives_what_was_learned(net: Net) -> None:
    """Not what is rounded to bf16, which the layer that is tied to it computes with."""
    tokens = torch.tensor([[1, 2, 1]])
    wanted = net.words.weight.detach()[tokens]
    update = FlatOptimizerStep(net, Training(), torch.bfloat16, 1)
    with FunctionOverrides():
        assert torch.equal(net.words(tokens), wanted)
    learn(update, net)
    with FunctionOverrides():
        found = net.words(tokens).detach()
    update.detach()
    assert torch.equal(found, net.words.weight[tokens])
    assert not torch.equal(found, wanted)


def test_bf16_learns_steps_that_are_smaller_than_its_own(net: Net) -> None:
    """A weight of 1 in bf16 cannot take a step of 1e-4; the fp32 one behind it can."""
    plain = copy.deepcopy(net)
    settings = {"learning_rate": 1e-4, "max_grad_norm": 0.0}
    update = FlatOptimizerStep(net, Training(**settings), torch.bfloat16, 1)
    learn(update, net)
    computed = [p.detach().clone() for p in net.parameters()]
    update.detach()
    assert {p.dtype for p in net.parameters()} == {torch.float32}
    for p, used in zip(net.parameters(), computed, strict=True):
        if p.requires_grad:
            assert torch.equal(p.to(used.dtype), used)
    moved = (net.norm.weight.detach() - 1).abs()
    assert 0.9e-4 < float(moved.max()) < STEPS * 1.1e-4
    assert torch.equal(net.norm.weight.bfloat16(), torch.ones(7, dtype=torch.bfloat16))
    reference(plain, **settings)
    check_same(net, plain, tolerance=2 * STEPS * 1e-4)


def test_attaching_or_detaching_twice_changes_nothing(net: Net) -> None:
    optimizer = FlatOptimizerStep(net, Training(), torch.bfloat16, 1)
    optimizer.attach()
    check_types(net, torch.bfloat16)
    optimizer.detach()
    places = [p.data_ptr() for p in net.parameters()]
    optimizer.detach()
    assert [p.data_ptr() for p in net.parameters()] == places
    optimizer.attach()
    check_types(net, torch.bfloat16)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_detach_and_attach(net: Net, dtype: torch.dtype) -> None:
    """A model that was given away and taken back goes on as if it had not been."""
    other = copy.deepcopy(net)
    settings = Training(learning_rate=1e-2)
    update, undisturbed = (FlatOptimizerStep(n, settings, dtype, 1) for n in (net, other))
    learn(update, net, steps=2)
    learn(undisturbed, other, steps=2)
    digest = update.digest()
    assert update.detach() is net
    assert {p.dtype for p in net.parameters()} == {torch.float32}
    storages = [p.untyped_storage() for p in net.parameters()]
    assert len({s.data_ptr() for s in storages}) == len(storages)
    for parameter, storage in zip(net.parameters(), storages, strict=True):
        assert storage.nbytes() == parameter.numel() * 4
    with torch.no_grad():
        for parameter in net.parameters():
            if parameter.requires_grad:
                parameter.fill_(7.0)  # what is done to it meanwhile is not learned from
    assert update.digest() == digest
    update.attach()
    check_types(net, dtype)
    learn(update, net)
    learn(undisturbed, other)
    assert update.digest() == undisturbed.digest() != digest


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_nothing_is_learned_from_what_is_no_number(
    net: Net, bad: float, dtype: torch.dtype
) -> None:
    other = copy.deepcopy(net)
    settings = Training(learning_rate=1e-2)
    update, undisturbed = (FlatOptimizerStep(n, settings, dtype, 1) for n in (net, other))
    for one, model in ((update, net), (undisturbed, other)):
        learn(one, model, steps=2)
    before = update.digest()
    tokens = next(batches())
    update.backward(loss_of(net, tokens) * bad, last=True)
    assert not math.isfinite(update.step())
    assert update.digest() == before
    learn(update, net)
    learn(undisturbed, other)
    assert update.digest() == undisturbed.digest()


def test_a_language_model_with_tied_weights() -> None:
    model = make_model("gpt2", "causal-lm")
    plain = copy.deepcopy(model)
    settings = Training(learning_rate=1e-3, weight_decay=0.1)
    update = FlatOptimizerStep(model, settings, torch.float32, 1)
    adamw = torch.optim.AdamW(
        [
            {"params": [p for p in plain.parameters() if p.ndim > 1], "weight_decay": 0.1},
            {"params": [p for p in plain.parameters() if p.ndim == 1], "weight_decay": 0.0},
        ],
        lr=1e-3,
    )
    tokens = torch.randint(VOCABULARY, (4, 16))
    for _ in range(4):
        update.backward(model(input_ids=tokens, labels=tokens).loss, last=True)
        update.step()
        adamw.zero_grad()
        plain(input_ids=tokens, labels=tokens).loss.backward()
        nn.utils.clip_grad_norm_(plain.parameters(), 1.0)
        adamw.step()
    assert model.lm_head.weight is model.transformer.wte.weight
    check_same(model, plain, tolerance=1e-5)
    released = update.detach()
    saved = dict(released.state_dict())
    assert saved["lm_head.weight"].data_ptr() == saved["transformer.wte.weight"].data_ptr()
