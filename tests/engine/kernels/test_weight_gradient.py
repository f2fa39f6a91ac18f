"""Gradients of weights that AMX computes, against their formula in fp64, and where they are summed.

Sums are used in the same way without AMX, where a product of torch replaces the tiles.
"""

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch.nn import functional

from ftcluster_kernels import cross_entropy, products, simd
from ftcluster_kernels import linear as module
from ftcluster_kernels.cross_entropy import linear_cross_entropy, token_losses
from ftcluster_kernels.gradient_sums import make_sums
from ftcluster_train.engine.optim.flat_params import FlatWeights, PendingGathers
from ftcluster_train.engine.optim.gradient_buckets import GradientBuckets
from ftcluster_train.patching.batch_context import sums_for
from ftcluster_train.patching.kernel_mode import KernelMode
from tests.engine.drawn import check_near, tensors, unit

BF16 = torch.bfloat16
sizes = st.sampled_from([32, 64, 96, 320])
rows = st.integers(1, 100) | st.sampled_from([1792, 1793, 3600])


@pytest.mark.needs("amx", "compiler")
@given(rows, sizes, sizes, st.booleans(), st.booleans(), st.sampled_from([1, 2, 3, 7]), st.data())
@example(1793, 320, 96, True, False, 7, None)
@example(1793, 320, 96, True, True, 7, None)
def test_tiles_compute_the_product(
    rows: int,
    outputs: int,
    inputs: int,
    adds: bool,
    turned: bool,
    threads: int,
    data: st.DataObject | None,
) -> None:
    assert products.has_amx()
    before = torch.get_num_threads()
    if turned:  # then the number of rows must be a multiple
        # few outputs, except in the examples, because emulated tiles are slow
        rows, outputs = outputs * 20, min(rows, 100) if data else rows
    if data:
        gradient, input = (data.draw(tensors((rows, n), BF16)) for n in (outputs, inputs))
    else:
        gradient, input = (torch.randn(rows, n).to(BF16) for n in (outputs, inputs))
    sums = torch.randn(outputs, inputs)
    wide = gradient.double(), input.double()
    exact, size = wide[0].T @ wide[1], wide[0].abs().T @ wide[1].abs()
    if adds:
        exact, size = exact + sums.double(), size + sums.double().abs()
    try:
        torch.set_num_threads(threads)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(simd, "FEW_ELEMENTS", 0)
            factor = gradient.T.contiguous().T if turned else gradient
            products.weight_gradient_(factor, input, sums, adds)
    finally:
        torch.set_num_threads(before)
    check_near(sums, exact, unit(torch.float32, rows + 1) * size)


@pytest.fixture(
    params=[
        pytest.param("tiles", marks=pytest.mark.needs("amx", "compiler")),
        pytest.param("fma", marks=pytest.mark.needs("avx512_bf16", "compiler")),
        "torch",
    ]
)
def sums(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make small weights have sums too."""
    monkeypatch.setattr(module, "MUCH_WORK", 0)
    by_fma = request.param == "fma"
    monkeypatch.setattr(products, "fma_dtypes", lambda: frozenset({BF16} if by_fma else ()))
    if request.param != "torch":
        return

    def product(left: torch.Tensor, right: torch.Tensor, sums: torch.Tensor, adds: bool) -> None:
        sums.copy_(left.float().T @ right.float() + (sums if adds else 0))

    monkeypatch.setattr(products, "has_amx", lambda: True)
    monkeypatch.setattr(products, "weight_gradient_", product)


class _Turned(torch.nn.Module):
    """A layer whose weight is stored transposed, as in GPT-2."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(64, 32))
        self.bias = torch.nn.Parameter(torch.randn(32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.addmm(self.bias, x, self.weight)


class _Layers(torch.nn.Module):
    """Layers used twice, transposed, by autograd too, of another size, unused, and tied logits."""

    kernels = False

    def __init__(self) -> None:
        super().__init__()
        self.twice = torch.nn.Linear(64, 64)
        self.seen = torch.nn.Linear(64, 64, bias=False)
        self.odd = torch.nn.Linear(64, 50)
        self.turned = _Turned()
        self.unused = torch.nn.Linear(32, 32)
        self.words = torch.nn.Embedding(70, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.seen(self.twice(functional.relu(self.twice(x))))
        tokens = torch.arange(len(x)) % 70
        x = x + self.words(tokens)
        loss = functional.cross_entropy(x @ self.words.weight.T, tokens, reduction="sum")
        losses = functional.cross_entropy(x @ self.words.weight.T, tokens, reduction="none")
        if self.kernels:
            sums = sums_for(self.words.weight)
            loss = linear_cross_entropy(x, self.words.weight, tokens, sums=sums)
            losses = token_losses(x, self.words.weight, tokens, sums=sums)
        loss = loss + (losses * torch.linspace(0, 1, len(x))).sum()
        other = self.seen.weight.float().square().sum()
        other = other + 0.3 * loss
        return self.turned(x).float().sum() + self.odd(x).float().square().mean() + other


Found = dict[str, torch.Tensor]


def of_buckets(model: _Layers, batches: list[torch.Tensor]) -> Iterator[Found]:
    """Return the gradients of several steps over the micro-batches."""
    weights = FlatWeights(model, BF16)
    buckets = GradientBuckets(weights, 1)
    model.kernels = True
    while True:
        for number, batch in enumerate(batches):
            buckets.start_backward(last=number == len(batches) - 1)
            context = weights.context(buckets.sinks, PendingGathers())
            with KernelMode(context=context), torch.autocast("cpu", BF16):
                model(batch).backward()
        flat = buckets.wait()
        places = {name: weights.layout.slices[p] for name, p in model.named_parameters()}
        yield {name: flat[place].clone() for name, place in places.items()}


def exact(model: _Layers, batches: list[torch.Tensor]) -> Found:
    for batch in batches:
        model(batch).backward()
    named = model.named_parameters()
    return {n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in named}


def check(found: Found, expected: Found, part: float) -> None:
    for name, gradient in expected.items():
        error = (found[name].view(gradient.shape) - gradient).norm()
        assert error <= part * max(float(gradient.norm()), 1e-6), name


@pytest.mark.usefixtures("sums")
@pytest.mark.parametrize("at_once", [1, 1 << 20])
def test_sums_are_those_of_autograd(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cross_entropy, "LOGITS", at_once)
    torch.manual_seed(2)
    model = _Layers()
    batches = [torch.randn(size, 64) for size in (48, 7, 1)]
    expected = exact(model, batches)
    for p in model.parameters():
        p.grad = None
    steps = of_buckets(model, batches)
    for _ in range(3):  # nothing of the previous step remains
        check(next(steps), expected, 0.02)


@pytest.mark.usefixtures("sums")
def test_rows_without_gradient_and_none_at_all() -> None:
    torch.manual_seed(3)
    layer = torch.nn.Linear(32, 64, bias=False)
    buckets = GradientBuckets(FlatWeights(layer, BF16), 1)
    input = torch.randn(100, 32).to(BF16)
    for chosen in ([3, 70], [], list(range(100))):
        grad = torch.zeros(100, 64, dtype=BF16)
        grad[chosen] = torch.randn(len(chosen), 64).to(BF16)
        buckets.start_backward(last=True)
        module.linear(input, layer.weight, sums=buckets.sinks.sums.get(layer.weight)).backward(grad)
        found = buckets.wait().view(64, 32)
        torch.testing.assert_close(found, grad.float().T @ input.float(), rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("sums")
def test_whoever_looks_at_a_gradient_gets_it() -> None:
    layer = torch.nn.Linear(32, 32, bias=False)
    buckets = GradientBuckets(FlatWeights(layer, BF16), 1)
    seen: list[torch.Tensor] = []
    layer.weight.register_hook(lambda grad: seen.append(grad) or 2 * grad)
    buckets.start_backward(last=True)
    sums, ones = buckets.sinks.sums.get(layer.weight), torch.ones(4, 32, dtype=BF16)
    module.linear(ones, layer.weight, sums=sums).sum().backward()
    assert [one.unique().item() for one in seen] == [4]
    assert buckets.wait().unique().tolist() == [8]


def test_rows_that_do_not_match_are_refused() -> None:
    rows = torch.ones(600, 64, dtype=BF16)
    with pytest.raises(ValueError, match="same number of rows"):
        products.weight_gradient_(rows, rows[:599], torch.empty(64, 64), adds=False)


@pytest.mark.usefixtures("sums")
def test_a_model_is_freed_with_its_sums() -> None:
    layer = torch.nn.Linear(32, 32)
    buckets = GradientBuckets(FlatWeights(layer, BF16), 1)
    buckets.start_backward(last=True)
    sums, ones = buckets.sinks.sums.get(layer.weight), torch.ones(4, 32, dtype=BF16)
    module.linear(ones, layer.weight, layer.bias, sums=sums).sum().backward()
    assert buckets.wait().any()
    del sums
    left: list[Callable[[], Any]] = [weakref.ref(x) for x in (layer, layer.weight, buckets)]
    del layer, buckets
    gc.collect()
    assert [one() for one in left] == [None] * 3


@pytest.mark.parametrize("value", ["AVX512_CORE_BF16", "avx2"])
def test_a_limit_for_onednn_is_one_for_tiles(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", value)
    assert not products.has_amx.__wrapped__()


def test_only_such_weights_have_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "has_amx", lambda: True)
    monkeypatch.setattr(products, "fma_dtypes", lambda: frozenset({BF16}))
    assert make_sums(torch.empty(64, 40), BF16)
    monkeypatch.setattr(products, "fma_dtypes", frozenset)
    assert make_sums(torch.empty(64, 32), BF16)
    assert make_sums(torch.empty(64, 40), BF16) is None
    narrow, wide = torch.empty(3, 40, dtype=BF16), torch.empty(3, 64, dtype=BF16)
    even = make_sums(torch.empty(64, 64), BF16)
    assert even
    assert even.takes(wide, wide)
    assert not even.takes(wide.float(), wide.float())  # weights that were returned in fp32
    assert not even.takes(wide[:, :32], wide)
    in_fp32 = make_sums(torch.empty(64, 40), torch.float32)
    assert in_fp32
    assert in_fp32.takes(wide.float(), narrow.float())
    assert not in_fp32.takes(wide, narrow)
    for shape, dtype in (((64,), BF16), ((64,), torch.float32), ((64, 32), torch.float16)):
        assert make_sums(torch.empty(shape), dtype) is None


@pytest.mark.usefixtures("sums")
@pytest.mark.parametrize("turned", [False, True])
def test_a_weight_without_sums_has_a_gradient(turned: bool) -> None:
    torch.manual_seed(4)
    input, grad = torch.randn(50, 32).to(BF16), torch.randn(50, 64).to(BF16)
    weight = torch.randn(32, 64).to(BF16) if turned else torch.randn(64, 32).to(BF16)
    weight.requires_grad_()
    module.linear(input, weight.T if turned else weight).backward(grad)
    exact = grad.double().T @ input.double()
    assert weight.grad is not None
    assert weight.grad.is_contiguous()
    found = weight.grad.T if turned else weight.grad
    torch.testing.assert_close(found.double(), exact, rtol=2**-8, atol=1e-3)
