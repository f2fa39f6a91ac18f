"""Norms, embeddings, linear layers and activations with fp32 values and bf16 weights."""

from typing import Any
from unittest.mock import patch

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers.pytorch_utils import Conv1D

from ftcluster_train.patching import fp32_residuals
from ftcluster_train.patching.batch_context import BatchContext
from ftcluster_train.patching.fp32_residuals import EMBEDDING, LAYER_NORM, Linear
from ftcluster_train.patching.kernel_mode import KernelMode
from tests.engine.drawn import DTYPES, ROUNDOFF, check_near, dtypes, tensors, unit

embedding, layer_norm = EMBEDDING.function(), LAYER_NORM.function()
FP32, BF16 = (ROUNDOFF[dtype] for dtype in DTYPES)
shapes = st.lists(st.integers(1, 5), min_size=1, max_size=3)


@given(st.integers(1, 40), st.integers(1, 40), dtypes, st.sampled_from([1e-5, 1e-12]), st.data())
def test_layer_norm(rows: int, width: int, dtype: torch.dtype, eps: float, data: Any) -> None:
    """Mean, variance and sums over rows are in fp32 for any input dtype."""
    inputs = [
        data.draw(tensors((rows, width), dtype)),
        data.draw(tensors((width,), torch.float32)),
        data.draw(tensors((width,), torch.float32)),
    ]
    upstream = data.draw(tensors((rows, width), torch.float32))
    own = [x.clone().requires_grad_() for x in inputs]
    with BatchContext(fp32_weights={own[1]: inputs[1]}):
        found = layer_norm(own[0], [width], own[1], own[2], eps)
    gradients = torch.autograd.grad(found, own, upstream)
    assert found.dtype == torch.float32
    assert [g.dtype for g in gradients] == [x.dtype for x in inputs]

    x, weight, bias, up = (t.double() for t in (*inputs, upstream))
    centred = x - x.mean(-1, keepdim=True)
    rstd = (centred.square().mean(-1, keepdim=True) + eps).rsqrt()
    normed = centred * rstd
    inner = up * weight
    mean, slope = inner.mean(-1, keepdim=True), (inner * normed).mean(-1, keepdim=True)
    exact = (
        normed * weight + bias,
        rstd * (inner - mean - normed * slope),
        (up * normed).sum(0),
        up.sum(0),
    )

    # the mean has rounding errors of the largest value for each element; variance and centered
    # values have them too
    u = (width + 8) * FP32
    off = u * (1 + x.abs().amax(-1, keepdim=True) * rstd)
    relative = off * (1 + normed.abs())
    largest = inner.abs() + inner.abs().mean(-1, keepdim=True)
    largest = largest + (1 + normed.abs()) * (inner * normed).abs().mean(-1, keepdim=True)
    largest = largest + (1 + normed.abs()) * (inner.abs() * (1 + relative)).mean(-1, keepdim=True)
    sums = rows * FP32
    bounds = (
        2 * relative * weight.abs() + 2 * FP32 * exact[0].abs() + 2 * FP32 * bias.abs(),
        rstd * largest * 2 * (off * (1 + off) + relative) + unit(dtype) * exact[1].abs(),
        (up.abs() * (2 * relative + sums * (normed.abs() + relative))).sum(0)
        + FP32 * exact[2].abs(),
        2 * sums * up.abs().sum(0),
    )
    for one, other, bound in zip((found, *gradients), exact, bounds, strict=True):
        check_near(one, other, bound * (1 + ROUNDOFF[dtype]))


@given(
    shapes, st.integers(1, 12), st.integers(1, 9), st.integers(-12, 11) | st.none(), dtypes,
    st.data(),
)  # fmt: skip
def test_embedding(
    shape: list[int],
    vocabulary: int,
    width: int,
    padding: int | None,
    dtype: torch.dtype,
    data: Any,
) -> None:
    """Gather rows of an embedding; gradients are summed in fp32 and rounded once."""
    if padding is not None:
        padding = max(-vocabulary, min(padding, vocabulary - 1))
    master = data.draw(tensors((vocabulary, width), torch.float32))
    upstream = data.draw(tensors((*shape, width), torch.float32))
    numbers = torch.Generator().manual_seed(data.draw(st.integers(0, 2**32)))
    tokens = torch.randint(vocabulary, shape, generator=numbers)
    weight = master.to(dtype, copy=True).requires_grad_()
    context = BatchContext()
    if dtype == torch.bfloat16 and data.draw(st.booleans()):
        context = BatchContext(fp32_weights={weight: master})
    by_rows = data.draw(st.booleans())  # sparse gradients, as for a large vocabulary
    if by_rows:
        context.sinks.rows[weight] = []
    with context, patch.object(fp32_residuals, "MANY_ELEMENTS", 0):
        found = embedding(tokens, weight, padding)
        if by_rows:
            found.backward(upstream)
    assert found.dtype == torch.float32
    if by_rows:
        assert weight.grad is None
        ((rows, sums),) = context.sinks.rows[weight]
        gradient = torch.zeros(vocabulary, width).index_add_(0, rows, sums)
    else:
        (gradient,) = torch.autograd.grad(found, weight, upstream)
        assert gradient.dtype == dtype
    assert torch.equal(found, context.fp32_weights.get(weight, weight)[tokens].float())
    check_sums(gradient, tokens, upstream, padding)


def test_many_gradients_of_one_token() -> None:
    """A sum in bf16 would stop at 256."""
    tokens, upstream = torch.zeros(8192, dtype=torch.int64), torch.ones(8192, 3)
    weight = torch.ones(5, 3).bfloat16().requires_grad_()
    (gradient,) = torch.autograd.grad(embedding(tokens, weight), weight, upstream)
    check_sums(gradient, tokens, upstream, None)


def check_sums(
    gradient: torch.Tensor, tokens: torch.Tensor, upstream: torch.Tensor, padding: int | None
) -> None:
    """Check that each row has the sum of its tokens' gradients; the padding row has none."""
    vocabulary, width = gradient.shape
    rows, places = upstream.double().view(-1, width), tokens.flatten()
    kept = torch.ones(len(places), 1)
    if padding is not None:
        kept[places == padding % vocabulary] = 0
    exact, size = (
        torch.zeros(vocabulary, width, dtype=torch.float64).index_add_(0, places, part * kept)
        for part in (rows, rows.abs())
    )
    rounding = ROUNDOFF[gradient.dtype] * exact.abs()
    check_near(gradient, exact, rounding + 2 * len(places) * FP32 * size)


@given(shapes, st.integers(1, 30), st.integers(1, 30), dtypes, st.booleans(), st.data())
def test_linear(
    shape: list[int], inner: int, outer: int, dtype: torch.dtype, with_bias: bool, data: Any
) -> None:
    """Input and result are rounded to bf16; sums are in fp32."""
    inputs = [
        data.draw(tensors((*shape, inner), dtype)),
        data.draw(tensors((outer, inner), torch.bfloat16)),
        *([data.draw(tensors((outer,), torch.bfloat16))] if with_bias else []),
    ]
    upstream = data.draw(tensors((*shape, outer), torch.bfloat16))
    own = [t.clone().requires_grad_() for t in inputs]
    found = Linear()(*own)
    gradients = torch.autograd.grad(found, own, upstream)
    assert found.dtype == torch.bfloat16
    assert [g.dtype for g in gradients] == [t.dtype for t in inputs]
    x, weight, *bias = (t.double() for t in inputs)
    rows, up = x.flatten(0, -2), upstream.double().flatten(0, -2)

    def results(one: torch.Tensor, two: torch.Tensor, three: Any, four: torch.Tensor) -> list[Any]:
        product = one @ two.T + (three if with_bias else 0)
        return [product, four @ two, four.T @ one, *([four.sum(0)] if with_bias else [])]

    exact = results(rows, weight, *(bias or [0]), up)
    large = results(rows.abs(), weight.abs(), bias[0].abs() if bias else 0, up.abs())
    # the input, the result and the product before the bias are rounded
    u = 3 * unit(torch.bfloat16, max(len(rows), inner, outer))
    for one, other, size in zip((found, *gradients), exact, large, strict=True):
        check_near(one, other.view(one.shape), u * size.view(one.shape))


def test_a_layer_of_gpt_2_is_a_linear_layer() -> None:
    """GPT-2 stores the weight transposed; torch's function would reject two dtypes."""
    torch.manual_seed(1)
    layer, x = Conv1D(5, 3).bfloat16(), torch.randn(2, 7, 3)
    with KernelMode():
        found = layer(x)
    assert found.dtype == torch.bfloat16
    exact = x.bfloat16().double() @ layer.weight.double() + layer.bias.double()
    check_near(
        found, exact, 3 * unit(torch.bfloat16) * x.abs().double() @ layer.weight.abs().double()
    )


@pytest.mark.parametrize("options", [{}, {"beta": 0.5}])
def test_any_other_addmm_is_torchs(options: dict[str, float]) -> None:
    matrices = torch.randn(4, 5), torch.randn(4, 3), torch.randn(3, 5)
    vector = [t.bfloat16() for t in (matrices[0][0], *matrices[1:])]
    given = vector if options else matrices
    with KernelMode():
        found = torch.addmm(*given, **options)
    assert torch.equal(found, torch.addmm(*given, **options))


actions = st.lists(st.tuples(st.sampled_from(["call", "change", "data"]), st.integers(0, 2)))


@given(actions)
def test_linear_never_takes_an_input_for_another(steps: list[tuple[str, int]]) -> None:
    """Linear never confuses inputs, after any sequence of calls and changes."""
    linear, weight = Linear(), torch.eye(3).bfloat16()
    inputs = [torch.full((2, 3), 1.0 + number) for number in range(3)]
    for action, number in steps:
        if action == "change":
            inputs[number].mul_(1.5)
        elif action == "data":  # leaves the tensor's version unchanged
            inputs[number].data.mul_(1.5)
        else:
            assert torch.equal(linear(inputs[number], weight), inputs[number].bfloat16())
