"""First, second and batched gradients of each kernel equal torch's, with any defaults."""

import contextlib
import sys
import types
import unittest
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from ftcluster_kernels import (
    activations,
    attention,
    cross_entropy,
    documents,
    dropout,
    linear,
    lora,
    norms,
    products,
    rotary,
    simd,
)
from ftcluster_train.patching import script_functions
from tests.engine.drawn import unit
from tests.engine.test_fast import enabled  # noqa: F401 - a fixture

pytestmark = pytest.mark.needs("avx2", "compiler")
Function = Callable[..., torch.Tensor]
TOKENS = 9
SEED = 3
# names of torch's OpInfo samples, by function with a kernel
SAMPLES = {
    "gelu": "nn.functional.gelu",
    "silu": "nn.functional.silu",
    "layer_norm": "nn.functional.layer_norm",
    "linear": "nn.functional.linear",
    "cross_entropy": "nn.functional.cross_entropy",
    "scaled_dot_product_attention": "nn.functional.scaled_dot_product_attention",
}


@contextlib.contextmanager
def dtype_by_default(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


# contexts in which tensors without a dtype or device get unusual defaults
DEFAULTS: dict[str, Callable[[], Any]] = {
    "usual": contextlib.nullcontext,
    "float64": partial(dtype_by_default, torch.float64),
    "bfloat16": partial(dtype_by_default, torch.bfloat16),
    "meta": partial(torch.device, "meta"),
}


@pytest.fixture(autouse=True)
def small_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make kernels accept small calls, on all threads."""
    monkeypatch.setattr(simd, "FEW_ELEMENTS", 0)
    monkeypatch.setattr(linear, "MUCH_WORK", 0)
    monkeypatch.setattr(products, "MUCH_WORK", 0)
    monkeypatch.setattr(script_functions, "MANY_CLASSES", 0)


def attend(
    *inputs: torch.Tensor, mask: torch.Tensor | None = None, causal: bool = False, p: float = 0.0
) -> torch.Tensor:
    query, key, value, *learned = inputs
    torch.manual_seed(SEED)
    known = attention.masked(learned[0] if learned else mask, query, TOKENS, attention.NO_MASK)
    return attention.attention(
        query, key, value, mask=known, causal=causal, scale=None, p=p, exact=True
    )


def attend_by_torch(
    *inputs: torch.Tensor, mask: torch.Tensor | None = None, causal: bool = False, p: float = 0.0
) -> torch.Tensor:
    """Compute attention as torch's math backend does, with the kernel's dropout mask."""
    query, key, value, *learned = inputs
    scores = query @ key.mT * query.shape[-1] ** -0.5
    if learned:
        scores = scores + learned[0]
    if causal:
        mask = torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril()
    if mask is not None:
        scores = scores.masked_fill(~mask, -1e30)
    shares = scores.softmax(-1)
    if mask is not None:
        shares = shares * mask.any(-1, keepdim=True)
    torch.manual_seed(SEED)
    if p:
        drop = dropout.exact_drop_of(p, dropout.draw_seed())
        shares = shares * simd.mask_of(drop, *shares.shape) / (1 - p)
    return shares @ value


def attend_in_documents(lengths: list[int], causal: bool, *inputs: torch.Tensor) -> torch.Tensor:
    output = attention.attention_of_documents(*inputs, lengths, None, 0.0, True, causal)
    assert output is not None, "left to the caller"
    return output


def documents_by_torch(lengths: list[int], causal: bool, *inputs: torch.Tensor) -> torch.Tensor:
    query, key, value = inputs
    key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], 1) for x in (key, value))
    mask = torch.block_diag(*[torch.ones(length, length) for length in lengths]).bool()
    mask = mask.tril() if causal else mask
    scores = (query @ key.mT * query.shape[-1] ** -0.5).masked_fill(~mask, -1e30)
    return scores.softmax(-1) @ value


def draw(*shapes: tuple[int, ...]) -> list[torch.Tensor]:
    numbers = torch.Generator().manual_seed(SEED)
    return [torch.randn(shape, generator=numbers) for shape in shapes]


def cases() -> Iterator[tuple[str, Function, Function, list[torch.Tensor]]]:
    """Yield a kernel's name, the kernel, the same function by torch, and inputs with gradients."""
    for name, function in activations.TORCH.items():
        yield name, partial(activations.activate, name), function, draw((7, 33))
        yield (
            f"gated {name}", partial(activations.activate, name),
            lambda x, factor, function=function: function(x) * factor, draw((7, 33), (7, 33)),
        )  # fmt: skip
    drop = dropout.drop_of(0.3, SEED)
    yield (
        "dropout", lambda x: dropout._Dropout.apply(x, drop),
        lambda x: x * simd.mask_of(drop, 7, 33), draw((7, 33)),
    )  # fmt: skip
    yield (
        "layer norm", lambda x, weight, bias: norms.norm(x, weight, bias, 1e-5, True),
        lambda x, weight, bias: functional.layer_norm(x, (33,), weight, bias),
        draw((7, 33), (33,), (33,)),
    )  # fmt: skip
    yield (
        "RMS norm", lambda x, weight: norms.rms_norm(x, weight, 1e-5),
        lambda x, weight: functional.rms_norm(x, (33,), weight, 1e-5), draw((7, 33), (33,)),
    )  # fmt: skip
    angles = draw((2, 5, 8))[0]
    cosines, sines = angles.cos(), angles.sin()
    yield (
        "rotary", lambda q, k: torch.cat(rotary.rotary(q, k, cosines, sines), 1),
        lambda *qk: torch.cat(
            [
                x * cosines[:, None]
                + torch.cat((-x[..., 4:], x[..., :4]), -1) * sines[:, None]
                for x in qk
            ],
            1,
        ),
        draw((2, 3, 5, 8), (2, 2, 5, 8)),
    )  # fmt: skip
    yield "linear", linear.linear, functional.linear, draw((3, 4, 8), (6, 8), (6,))
    yield (
        "linear, turned weight",
        lambda x, w: linear.linear(x, w.T),
        lambda x, w: x @ w,
        draw((3, 4, 8), (8, 6)),
    )
    frozen = draw((6, 8))[0]
    yield (
        "low rank", lambda *inputs: lora._LowRankLinear.apply(
            inputs[0], frozen, None, *inputs[1:], 0.5, (None, None)
        ),
        lambda x, down, up: functional.linear(x, frozen + up @ down * 0.5),
        draw((3, 4, 8), (2, 8), (6, 2)),
    )  # fmt: skip
    mask = torch.rand(2, 1, TOKENS, TOKENS, generator=torch.Generator().manual_seed(SEED)) < 0.7
    mask[..., 0], mask[1, :, 3] = True, False
    for size in (12, 32):
        inputs = draw(*[(2, 3, TOKENS, size)] * 3)
        for p in (0.0, 0.3):
            for options in ({}, {"causal": True}, {"mask": mask}):
                yield (
                    f"attention of {size}, {[*options]}, {p}", partial(attend, p=p, **options),
                    partial(attend_by_torch, p=p, **options), inputs,
                )  # fmt: skip
            yield (
                f"attention of {size}, learned, {p}", partial(attend, p=p),
                partial(attend_by_torch, p=p), [*inputs, *draw((1, 3, TOKENS, TOKENS))],
            )  # fmt: skip
    lengths = [3, 5, 4]
    rows = draw((1, 4, 12, 32), (1, 2, 12, 32), (1, 2, 12, 32))
    for causal in (False, True):
        yield (
            f"documents, {causal}", partial(attend_in_documents, lengths, causal),
            partial(documents_by_torch, lengths, causal), rows,
        )  # fmt: skip
    yield (
        "documents in groups", lambda row: documents.join_documents(
            [
                group.sin()
                for group in documents.split_row(row, documents.layout_of((3, 5, 4), 64), 2)
            ],
            documents.layout_of((3, 5, 4), 64), 2,
        ),
        torch.sin, rows[:1],
    )  # fmt: skip
    targets = torch.tensor([3, 49, -100, 0, 7, 7])
    for reduction in ("mean", "none"):
        yield (
            f"cross entropy, {reduction}",
            partial(cross_entropy.cross_entropy, targets=targets, reduction=reduction),
            partial(functional.cross_entropy, target=targets, reduction=reduction), draw((6, 50)),
        )  # fmt: skip
    targets = targets.clamp(min=1)
    for kernel, reduction in (
        (cross_entropy.linear_cross_entropy, "sum"), (cross_entropy.token_losses, "none"),
    ):  # fmt: skip
        yield (
            kernel.__name__,
            lambda x, weight, bias, kernel=kernel, sums=None: kernel(
                x, weight, targets, bias, sums
            ),
            lambda x, weight, bias, reduction=reduction: functional.cross_entropy(
                functional.linear(x, weight, bias), targets, reduction=reduction
            ),
            draw((6, 16), (50, 16), (50,)),
        )  # fmt: skip


CASES = {name: case for name, *case in cases()}


def derivatives(function: Function, inputs: list[torch.Tensor]) -> Iterator[torch.Tensor]:
    """Return the output and several kinds of derivatives, each from a separate pass."""
    inputs = [x.detach().clone().requires_grad_(x.requires_grad) for x in inputs]
    along = [
        torch.linspace(-1, 2, x.numel(), dtype=x.dtype, device=x.device).view(x.shape)
        for x in inputs
    ]
    wanted = [x for x in inputs if x.requires_grad]
    along = [a for a, x in zip(along, inputs, strict=True) if x.requires_grad]

    def product(gradients: tuple[torch.Tensor, ...]) -> torch.Tensor:
        return sum((g * a).sum() for g, a in zip(gradients, along, strict=True))

    def grad(total: torch.Tensor) -> list[torch.Tensor]:
        if not total.requires_grad:
            return [torch.zeros_like(x) for x in wanted]
        found = torch.autograd.grad(total, wanted, allow_unused=True)
        return [torch.zeros_like(x) if g is None else g for x, g in zip(wanted, found, strict=True)]

    output = function(*inputs)
    yield output
    ones = torch.ones_like(output)
    yield from torch.autograd.grad(output, wanted, output.detach().cos())
    # no later layer has parameters, so the gradient of the output has no graph
    yield from grad(
        product(torch.autograd.grad(function(*inputs), wanted, ones, create_graph=True))
    )
    total = function(*inputs).square().sum()
    yield from grad(product(torch.autograd.grad(total, wanted, create_graph=True)).square())
    batch = torch.stack([ones, output.detach().cos()])
    yield from torch.autograd.grad(function(*inputs), wanted, batch, is_grads_batched=True)
    negative = torch._neg_view(output.detach().cos())  # the sign is not in memory
    yield from torch.autograd.grad(function(*inputs), wanted, negative)
    yield torch.autograd.functional.jvp(function, tuple(inputs), tuple(x.cos() for x in inputs))[1]


def check_same(found: Any, wanted: Any, rtol: float = 1e-5) -> None:
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours.dtype == theirs.dtype
        largest = float(theirs.detach().abs().max()) if theirs.numel() else 1.0
        torch.testing.assert_close(ours, theirs, rtol=0, atol=rtol * max(largest, 1.0))


# with other defaults; the remaining cases allocate like these
FEWER = {
    "gated gelu", "dropout", "layer norm", "rotary", "linear", "low rank", "documents in groups",
    "attention of 12, ['mask'], 0.3", "attention of 32, ['causal'], 0.3", "documents, True",
    "attention of 32, ['mask'], 0.0", "cross entropy, mean", "linear_cross_entropy", "token_losses",
}  # fmt: skip


@pytest.mark.parametrize(
    ("default", "name"),
    [(x, name) for x in DEFAULTS for name in CASES if x == "usual" or name in FEWER],
)
def test_derivatives_are_those_of_torch(default: str, name: str) -> None:
    defaults = DEFAULTS[default]
    kernel, by_torch, inputs = CASES[name]
    inputs = [x.clone().requires_grad_() for x in inputs]
    wanted = list(derivatives(by_torch, inputs))
    with defaults():
        found = list(derivatives(kernel, inputs))
    check_same(found, wanted)


@pytest.mark.parametrize("name", CASES)
def test_transforms_see_torch_s_operations(name: str) -> None:
    """Forward-mode differentiation refuses a kernel, and FlopCounterMode would count nothing."""
    kernel, by_torch, inputs = CASES[name]
    if name == "dropout":  # call the kernel itself, because `dropout.dropout` would call torch
        return
    if name.startswith("documents, "):  # the caller then computes them in groups
        with FlopCounterMode(display=False), pytest.raises(AssertionError, match="caller"):
            kernel(*inputs)
        return
    if not name.endswith("0.3") and name != "low rank" and "groups" not in name:
        tangents = tuple(x.cos() for x in inputs)
        with torch.autograd.forward_ad.dual_level():
            duals = map(torch.autograd.forward_ad.make_dual, inputs, tangents)
            found = torch.autograd.forward_ad.unpack_dual(kernel(*duals)).tangent
        wanted = torch.autograd.functional.jvp(by_torch, tuple(inputs), tangents)[1]
        check_same([found], [wanted])


def is_learned(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.requires_grad


def samples(function: str) -> Iterator[tuple[Any, ...]]:
    """Yield the calls of torch's own tests that a kernel accepts, with their arguments."""
    entry = next(
        entry for entry in script_functions.SCRIPT_FUNCTIONS if entry.original.__name__ == function
    )
    # torch's tests import this package, but torch's wheel does not contain it
    expect = types.ModuleType("expecttest")
    expect.TestCase = unittest.TestCase  # type: ignore[attr-defined]
    sys.modules.setdefault("expecttest", expect)
    from torch.testing._internal.common_methods_invocations import op_db

    for info in (info for info in op_db if info.name == SAMPLES[function]):
        for sample in info.sample_inputs("cpu", torch.float32, requires_grad=True):
            arguments = (sample.input, *sample.args)
            if entry.guard(*arguments, **sample.kwargs) is None and sample.input.numel():
                yield entry, arguments, sample.kwargs


@pytest.mark.parametrize("function", SAMPLES)
@pytest.mark.parametrize("default", ["usual", "bfloat16"])
def test_samples_of_torch_s_own_tests(function: str, default: str) -> None:
    taken, defaults = 0, DEFAULTS[default]
    for entry, arguments, named in samples(function):
        if named.get("dropout_p"):  # the mask would differ
            continue
        if function == "layer_norm" and arguments[0].shape[-1] == 1:
            # for a single element all derivatives are 0, so only rounding errors would be compared
            continue
        learned = [x for x in (*arguments, *named.values()) if is_learned(x)]

        def call(
            target: Function,
            *values: torch.Tensor,
            arguments: Any = arguments,
            named: Any = named,
        ) -> torch.Tensor:
            rest = iter(values)
            return target(
                *(next(rest) if is_learned(x) else x for x in arguments),
                **{name: next(rest) if is_learned(x) else x for name, x in named.items()},
            )

        with sdpa_kernel(SDPBackend.MATH):  # flash attention has no second derivatives
            wanted = list(derivatives(partial(call, entry.original), learned))
        with defaults():
            found = list(derivatives(partial(call, entry.kernel), learned))
        # second derivatives of norms of few elements are differences of large numbers
        largest = max(1.0, *(float(x.detach().abs().max()) for x in wanted))
        check_same(found, wanted, rtol=unit(torch.float32, 400) * largest)
        taken += 1
    assert taken, "no sample is one that the kernel takes"


LAYER = torch.nn.TransformerEncoderLayer(
    32, 2, 24, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
).requires_grad_(False)


def layer(inputs: torch.Tensor) -> torch.Tensor:
    """Return torch's encoder layer with frozen weights: linear, attention, GELU and LayerNorm."""
    return LAYER(inputs.view(1, -1, 32)).tanh()


def penalty(inputs: torch.Tensor) -> torch.Tensor:
    """Return a gradient penalty, as in WGAN-GP, and its gradient with respect to the weights."""
    torch.manual_seed(SEED)
    layers = [torch.nn.Linear(32, 16), torch.nn.GELU(), torch.nn.LayerNorm(16)]
    critic = torch.nn.Sequential(*layers, torch.nn.Linear(16, 8), torch.nn.SiLU())
    inputs = inputs.clone().requires_grad_()
    scores = critic(inputs)
    (grad,) = torch.autograd.grad(scores, inputs, torch.ones_like(scores), create_graph=True)
    ((grad.norm(dim=-1) - 1).square().sum() * 10).backward()
    return torch.cat([p.grad.flatten() for p in critic.parameters() if p.grad is not None])


def hessian(inputs: torch.Tensor, vectorize: bool) -> torch.Tensor:
    return torch.autograd.functional.hessian(
        lambda x: layer(x).square().sum(), inputs, vectorize=vectorize
    )


def jacobian(inputs: torch.Tensor, strategy: str) -> torch.Tensor:
    return torch.autograd.functional.jacobian(layer, inputs, vectorize=True, strategy=strategy)


def flops(inputs: torch.Tensor) -> torch.Tensor:
    """Return the floating-point operations of the forward and backward passes of a model."""
    torch.manual_seed(SEED)
    kind = torch.nn.TransformerEncoderLayer
    model = kind(32, 2, 24, dropout=0.0, activation="gelu", batch_first=True)
    with FlopCounterMode(display=False) as counter:
        model(inputs.view(1, -1, 32)).sum().backward()
    return torch.tensor(counter.get_total_flops())


SCRIPTS: dict[str, Function] = {
    "gradient penalty": penalty,
    "hessian": partial(hessian, vectorize=False),
    "vectorized hessian": partial(hessian, vectorize=True),
    "jacobian": partial(jacobian, strategy="reverse-mode"),
    "forward-mode jacobian": partial(jacobian, strategy="forward-mode"),
    "jacrev": torch.func.jacrev(layer),
    "jacfwd": torch.func.jacfwd(layer),
    "flops": flops,
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_with_derivatives(name: str, request: pytest.FixtureRequest) -> None:
    (inputs,) = draw((3, 32))
    with sdpa_kernel(SDPBackend.MATH):  # flash attention has neither second nor forward derivatives
        wanted = SCRIPTS[name](inputs)
        assert wanted.count_nonzero() > 0
        request.getfixturevalue("enabled")
        check_same([SCRIPTS[name](inputs)], [wanted])


@pytest.mark.parametrize("offset", [0, 300, 3e4, -3e4, 3e6])
@pytest.mark.parametrize("kernel", ["cross entropy", "none", "token losses"])
def test_an_offset_of_all_logits_loses_no_digits(kernel: str, offset: float) -> None:
    """Logits are multiples of 1/4, which fp32 represents exactly."""
    (logits,) = draw((8, 5000))
    logits = ((logits * 16).round() / 4 + offset).requires_grad_()
    targets = torch.arange(8) * 600
    if kernel == "token losses":
        bias = torch.full((5000,), offset)
        hidden = (logits.detach() - offset).T.contiguous().requires_grad_()
        losses = cross_entropy.token_losses(torch.eye(8), hidden, targets, bias)
        found = torch.autograd.grad(losses.sum(), hidden)[0].T
    else:
        losses = cross_entropy.cross_entropy(logits, targets, reduction="none")
        found = torch.autograd.grad(losses.sum(), logits)[0]
    exact = logits.detach().double().requires_grad_()
    wanted = functional.cross_entropy(exact, targets, reduction="none")
    torch.testing.assert_close(losses, wanted.float(), rtol=1e-5, atol=1e-5)
    of_exact = torch.autograd.grad(wanted.sum(), exact)[0]
    torch.testing.assert_close(found.double(), of_exact, rtol=1e-4, atol=1e-9)


UNFIT = {
    "another dtype": lambda x: x.double(),
    "too short": lambda x: x[:-1],
    "turned": lambda x: x.T,
    "negative": lambda x: torch._neg_view(x),
    "sparse": lambda x: x.to_sparse(),
    "elsewhere": lambda x: x.to("meta"),
}


@pytest.mark.parametrize("name", UNFIT)
def test_what_c_would_misread_is_refused(name: str) -> None:
    unfit, fit = UNFIT[name](torch.ones(4, 6)), torch.ones(4, 6)
    calls = [
        lambda: simd.activation_backward("gelu", unfit, fit),
        lambda: simd.softmax_backward_(fit.clone(), unfit, 0, None),
        lambda: simd.adamw_(fit.clone(), unfit, fit.clone(), fit.clone(), None, [0.0] * 9),
        lambda: simd.norm_backward(fit, torch.ones(6), unfit, None, None, torch.ones(4)),
    ]
    for call in calls:
        with pytest.raises((ValueError, RuntimeError), match=r"expected|strides|contiguous"):
            call()
    assert name in ("too short", "turned") or not simd.is_fit(unfit, fit)


def test_a_single_vector_goes_through_each_linear_layer() -> None:
    vector, weight, down, up = draw((64,), (48, 64), (4, 64), (48, 4))
    bias, learned = draw((48,))[0], weight.clone().requires_grad_()
    adapter = lora.Adapter(torch.nn.Parameter(down), torch.nn.Parameter(up), 0.5)
    found = linear.linear(vector, learned, bias)
    torch.testing.assert_close(found, functional.linear(vector, weight, bias))
    found.sum().backward()
    torch.testing.assert_close(learned.grad, vector.expand(48, 64))
    found = lora.linear_with_adapter(vector, weight, bias, adapter)
    torch.testing.assert_close(found, functional.linear(vector, weight + up @ down * 0.5, bias))


@pytest.mark.parametrize("dtype", [torch.complex64, torch.float64, torch.float16])
def test_a_linear_layer_of_other_numbers_is_torch_s(dtype: torch.dtype) -> None:
    """Complex numbers have conjugate gradients, which the kernel does not compute."""
    numbers = torch.Generator().manual_seed(SEED)
    inputs = [
        torch.randn(shape, generator=numbers, dtype=torch.float32).to(dtype) * (1 + 0.5j)
        if dtype.is_complex
        else torch.randn(shape, generator=numbers).to(dtype)
        for shape in ((3, 8), (6, 8))
    ]
    grads = []
    for function in (linear.linear, functional.linear):
        leaves = [x.clone().requires_grad_() for x in inputs]
        function(*leaves).abs().sum().backward()
        grads.append([x.grad for x in leaves])
    check_same(*grads)
