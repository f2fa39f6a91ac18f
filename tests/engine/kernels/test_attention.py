"""Attention equals its formula in fp64, except for rounding; other calls use torch's function."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import assume, example, given
from hypothesis import strategies as st

from ftcluster_kernels import attention, attention_heads, simd
from ftcluster_kernels.attention import CAUSAL_BLOCK
from ftcluster_kernels.documents import document_mask
from ftcluster_kernels.simd import Drop
from ftcluster_train.patching import attention as patching
from ftcluster_train.patching.attention import Attention, torch_attention
from tests import rights
from tests.engine.drawn import LIBRARIES, TINY, check_near, dtypes, tensors, unit


def function_of(**options: Any) -> Any:
    """Return the function that a training calls in place of torch's."""
    return Attention(**options).patch().function()


pytestmark = pytest.mark.needs("avx2", "compiler")  # then the package has the loops
Tensors = tuple[torch.Tensor, ...]
SEEN = -1e29  # a smaller bias acts as a mask


@dataclass(frozen=True)
class Case:
    """A call of attention, and the gradient of its output."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    upstream: torch.Tensor
    mask: torch.Tensor | None = None
    causal: bool = False
    scale: float | None = None
    p: float = 0.0
    seed: int = 0

    @property
    def options(self) -> dict[str, Any]:
        return {
            "attn_mask": self.mask, "dropout_p": self.p, "is_causal": self.causal,
            "scale": self.scale, "enable_gqa": self.key.shape[1] > 1,
        }  # fmt: skip


LENGTHS = st.integers(1, 40) | st.sampled_from([48, 49, 100])  # tiles compute 48 queries at once


@st.composite
def masks(draw: st.DrawFn, shape: tuple[int, int, int, int]) -> torch.Tensor:
    """Draw a mask: padding left or right, or any mask; bool, -inf or the lowest number."""
    dtype = draw(dtypes)  # a model's residuals are in fp32, and its queries in bf16
    batch, heads, queries, keys = shape
    kind = draw(st.sampled_from(["right", "left", "any", "none is seen"]))
    if kind in ("right", "left"):
        # 0: the queries of a sample that consists of padding see no key
        seen = st.lists(st.integers(0, keys), min_size=batch, max_size=batch)
        lengths = torch.tensor(draw(seen)).view(batch, 1, 1, 1)
        mask = torch.arange(keys).view(1, 1, 1, keys) < lengths
        mask = mask.flip(-1) if kind == "left" else mask
        if draw(st.booleans()):
            mask = mask.expand(batch, 1, queries, keys)
    else:
        own = [draw(st.sampled_from([1, size])) for size in (batch, heads)]
        numbers = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
        share = 0.0 if kind == "none is seen" else draw(st.sampled_from([0.1, 0.5, 0.9]))
        mask = torch.rand(*own, queries, keys, generator=numbers) < share
    if draw(st.booleans()):
        return mask
    hidden = draw(st.sampled_from([-torch.inf, torch.finfo(dtype).min]))
    slopes = draw(tensors(tuple(mask.shape), dtype))
    return slopes.masked_fill(~mask, hidden)


@st.composite
def cases(draw: st.DrawFn, masked: bool = False) -> Case:
    dtype = draw(dtypes)
    batch, heads = draw(st.integers(1, 3)), draw(st.sampled_from([1, 2, 4]))
    groups = draw(st.sampled_from([g for g in (1, 2, 4) if heads % g == 0]))
    causal = not masked and draw(st.booleans())
    queries = draw(LENGTHS)
    keys = queries if causal else draw(LENGTHS)
    size, value_size = draw(st.integers(1, 20)), draw(st.integers(1, 20))
    if draw(st.booleans()):  # sizes that AMX tiles support
        size = value_size = draw(st.sampled_from([32, 64, 96]))
    shared = (batch, heads // groups, keys)
    mask = None
    if masked or (not causal and draw(st.booleans())):
        mask = draw(masks((batch, heads, queries, keys)))
    return Case(
        draw(tensors((batch, heads, queries, size), dtype)),
        draw(tensors((*shared, size), dtype, st.sampled_from([1.0, 0.1, 10.0]))),
        draw(tensors((*shared, value_size), dtype)),
        draw(tensors((batch, heads, queries, value_size), dtype)),
        mask,
        causal,
        draw(st.sampled_from([None, 1.0, 0.3])),
        draw(st.sampled_from([0.0, 0.0, 0.1, 0.5, 0.9])),
        draw(st.integers(0, 2**32)),
    )


def ours(case: Case, block: int, few: int) -> tuple[Tensors, torch.Tensor]:
    """Return output, gradients, and the factors of dropout: (batch, heads, queries, keys)."""
    drawn: list[Drop] = []
    parts: list[Any] = []
    plain, before = attention.drop_of, (attention.CAUSAL_BLOCK, attention.FEW_SCORES)
    plain_parts = attention._parts

    def drop(p: float, seed: int) -> Drop:
        drawn.append(plain(p, seed))
        return drawn[-1]

    def seen_parts(*args: Any) -> Iterator[Any]:
        parts.extend(plain_parts(*args))
        yield from parts

    attention.drop_of, attention.CAUSAL_BLOCK = drop, block
    attention._parts, attention.FEW_SCORES = seen_parts, few
    try:
        torch.manual_seed(case.seed)
        inputs = [x.clone().requires_grad_() for x in (case.query, case.key, case.value)]
        found = function_of(with_dropout=True)(*inputs, **case.options)
        gradients = torch.autograd.grad(found, inputs, case.upstream)
        attention.drop_of, attention._parts = plain, plain_parts
        check_without_gradients(case, found)
        batch, heads, queries, _ = case.query.shape
        factors = torch.ones(batch * heads, queries, case.key.shape[2], dtype=torch.float64)
        if not parts:  # computed by tiles
            parts = [(0, slice(None), slice(None), slice(None))]
        if drawn:
            for (_, samples, rows, seen), one in zip(parts, drawn, strict=True):
                part = factors[samples, rows, seen]
                part.copy_(simd.dropout(torch.ones(part.shape, dtype=torch.bfloat16), one))
    finally:
        attention.drop_of, attention._parts = plain, plain_parts
        attention.CAUSAL_BLOCK, attention.FEW_SCORES = before
    return (found.detach(), *gradients), factors.view(batch, heads, queries, -1)


def check_without_gradients(case: Case, found: torch.Tensor) -> None:
    """Without a backward pass the output has the same bits, although no probabilities are kept."""
    torch.manual_seed(case.seed)
    again = function_of(with_dropout=True, without_gradients=True)(
        case.query, case.key, case.value, **case.options
    )
    assert torch.equal(again, found)


def bias_of(case: Case) -> torch.Tensor:
    """Return the bias of the scores in their shape: -inf for masked keys."""
    batch, heads, queries, _ = case.query.shape
    bias = torch.zeros(batch, heads, queries, case.key.shape[2], dtype=torch.float64)
    if case.causal:
        bias += torch.full_like(bias, -torch.inf).triu(1)
    if case.mask is not None and case.mask.dtype == torch.bool:
        bias = bias.masked_fill(~case.mask, -torch.inf)
    elif case.mask is not None:
        # as under autocast: the lowest number of fp32 becomes -inf in bf16
        bias = bias + case.mask.to(case.query.dtype).double()
    return bias


def check(case: Case, block: int = attention.CAUSAL_BLOCK, few: int = 1 << 16) -> None:
    """Check that outputs and gradients are within the rounding error."""
    check_found(case, *ours(case, block, few))


def check_found(case: Case, found: Tensors, factors: torch.Tensor | float = 1.0) -> None:
    """Check values that were computed before, and return the reference.

    Args:
        factors: dropout's factors: (batch, heads, queries, keys).
    """
    batch, heads, queries, size = case.query.shape
    keys = case.key.shape[2]
    groups = heads // case.key.shape[1]
    dtype = case.query.dtype
    scale = size**-0.5 if case.scale is None else case.scale
    query, upstream = case.query.double(), case.upstream.double()
    key, value = (x.double().repeat_interleave(groups, 1) for x in (case.key, case.value))

    bias = bias_of(case)
    scores = query @ key.mT * scale + bias
    # a query without a visible key gets 0 from torch; with the lowest number as mask, it gets the
    # mean of all values
    shares = torch.softmax(scores, -1).nan_to_num(0)
    kept = shares * factors
    of_shares = upstream @ value.mT * factors
    inner = (shares * of_shares).sum(-1, keepdim=True)
    of_scores = shares * (of_shares - inner)
    exact = (
        kept @ value,
        of_scores @ key * scale,
        of_scores.mT @ query * scale,
        kept.mT @ upstream,
    )

    # the error of the scores: query * scale, the product, the bias and the sum are rounded
    u = unit(dtype, max(queries, keys, size, value.shape[-1]))
    products = query.abs() @ key.mT.abs() * abs(scale)
    added = 3 * u * products + 2 * u * torch.where(bias > SEEN, bias.abs(), 0)
    of_row = torch.where((bias > SEEN), added, 0).amax(-1, keepdim=True)
    # the error of the probabilities: exp of the error above, in both directions, rounded; if this
    # is large, any probability is allowed
    relative = torch.where(of_row < 1, torch.expm1(2 * of_row) + 2 * u, torch.inf)
    error = (shares * relative + TINY).nan_to_num(torch.inf).clamp(max=1 + u)
    error *= bias > -torch.inf
    most = shares + error
    large = upstream.abs() @ value.mT.abs() * factors
    of_inner = ((error + 2 * u * most) * large).sum(-1, keepdim=True)
    bound = (error + u * most) * (large + (shares * large).sum(-1, keepdim=True))
    bound += most * (2 * u * large + of_inner)
    found_scores = of_scores.abs() + bound
    blocks = len(list(attention._blocks(queries, keys, case.causal)))
    sums = (blocks + groups + 1) * u  # for the gradients of keys and values
    bounds = (
        (error + 2 * u * most) * factors @ value.abs(),
        (bound + 2 * u * found_scores) @ key.abs() * abs(scale),
        (bound + sums * found_scores).mT @ query.abs() * abs(scale),
        ((error + sums * most) * factors).mT @ upstream.abs(),
    )
    shared = (batch, heads // groups, groups, keys, -1)
    for number, (one, other, allowed) in enumerate(zip(found, exact, bounds, strict=True)):
        assert one.dtype == dtype
        if number > 1:  # the gradients of heads with shared keys are added
            other, allowed = (x.view(shared).sum(2) for x in (other, allowed))
        check_near(one, other, allowed)


@pytest.fixture(
    scope="module",  # hypothesis requires this scope
    params=[pytest.param("tiles", marks=pytest.mark.needs("amx", "compiler")), "without tiles"],
)
def on_tiles(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run the test with AMX tiles, and with the code that replaces tiles on CPUs without AMX."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param != "tiles":
            patch.setattr(attention_heads, "has_amx", lambda: False)
        yield


ONE = torch.full((1, 1, 1, 1), 1.5)


@pytest.mark.usefixtures("on_tiles")
@given(cases())
# a query without a visible key gets 0, as from torch
@example(Case(ONE, ONE, ONE, ONE, mask=torch.full_like(ONE, -torch.inf)))
@example(Case(*[ONE.bfloat16()] * 4, mask=torch.full_like(ONE, torch.finfo(torch.float32).min)))
def test_attention(case: Case) -> None:
    check(case)


@pytest.mark.usefixtures("on_tiles")
@given(cases(masked=True))
def test_samples_of_different_lengths(case: Case) -> None:
    """Samples of different lengths have their own keys; padding is skipped."""
    check(case, few=0)


@pytest.mark.usefixtures("on_tiles")
@given(cases(), st.integers(1, 9))
def test_causal_blocks(case: Case, block: int) -> None:
    assume(case.causal)
    check(case, block)


documents = st.lists(st.integers(1, 9) | st.sampled_from([33, 96, 97]), min_size=1, max_size=6)


@pytest.mark.usefixtures("on_tiles")
@given(documents, st.sampled_from([1, 2, 4]), st.sampled_from([8, 32, 64]), dtypes,
       st.sampled_from([None, 0.3]), st.sampled_from([4, 1024]), st.booleans(), st.booleans(),
       st.data())  # fmt: skip
def test_documents_of_a_row(
    lengths: list[int], groups: int, size: int, dtype: torch.dtype, scale: float | None,
    longest: int, tokens_outside: bool, causal: bool, data: Any,
) -> None:  # fmt: skip
    """Each packed sequence gets the same result as alone, with any kernel."""
    tokens = sum(lengths)
    heads = (4, 4 // groups, 4 // groups, 4)
    *row, upstream = (data.draw(tensors((1, count, tokens, size), dtype)) for count in heads)
    if tokens_outside:  # in the memory layout that models use
        row = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in row]
    ours = function_of(with_dropout=True, max_length=longest)
    options: dict[str, Any] = {"scale": scale, "enable_gqa": groups > 1}
    inputs = [x.clone().requires_grad_() for x in row]
    output = ours(*inputs, attn_mask=document_mask(lengths, causal), **options)
    found = [output.detach(), *torch.autograd.grad(output, inputs, upstream)]
    without = function_of(with_dropout=True, max_length=longest, without_gradients=True)
    again = without(*row, attn_mask=document_mask(lengths, causal), **options)
    assert torch.equal(again, found[0])
    start = 0
    for length in lengths:
        query, key, value, up, *own = (
            x[:, :, start : start + length] for x in (*row, upstream, *found)
        )
        check_found(Case(query, key, value, up, causal=causal, scale=scale), tuple(own))
        start += length


@pytest.mark.usefixtures("on_tiles")
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dropout_in_documents(
    groups: int, causal: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not attention_heads._has_loop(dtype):
        pytest.skip("needs avx512_bf16: without it torch computes documents in bf16")
    torch.manual_seed(8)
    lengths, of_keys, drawn = [40, 7, 130, 1], 4 // groups, []

    def drop(p: float, seed: int) -> Drop:
        drawn.append(drop_of(p, seed))
        return drawn[-1]

    drop_of = attention.drop_of
    monkeypatch.setattr(attention, "drop_of", drop)
    heads = (4, of_keys, of_keys, 4)
    *row, upstream = (torch.randn(1, n, sum(lengths), 64).to(dtype) for n in heads)
    inputs = [x.clone().requires_grad_() for x in row]
    output = function_of(with_dropout=True)(
        *inputs, attn_mask=document_mask(lengths, causal), dropout_p=0.3, enable_gqa=groups > 1
    )
    found = [output.detach(), *torch.autograd.grad(output, inputs, upstream)]
    (one,) = drawn  # of all documents, the longest first
    counts = [4 * n * n for n in sorted(lengths, reverse=True)]
    factors = simd.dropout(torch.ones(sum(counts), dtype=torch.bfloat16), one).split(counts)
    for length, of_tiles in zip(sorted(lengths, reverse=True), factors, strict=True):
        start = sum(lengths[: lengths.index(length)])
        query, key, value, up, *own = (
            x[:, :, start : start + length] for x in (*row, upstream, *found)
        )
        rows = of_tiles.view(of_keys, length, groups, length).transpose(1, 2)
        case = Case(query, key, value, up, causal=causal)
        check_found(case, tuple(own), rows.reshape(1, 4, length, length).double())


@pytest.mark.usefixtures("on_tiles")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_vectors_an_odd_number_of_numbers_apart(dtype: torch.dtype) -> None:
    leaves = [torch.randn(2, 3, 37, 65).to(dtype).requires_grad_() for _ in range(3)]
    found = []
    for copied in (False, True):
        parts = [x[..., 1:].contiguous() if copied else x[..., 1:] for x in leaves]
        output = function_of(with_dropout=False)(*parts)
        found.append((output, *torch.autograd.grad(output.float().square().sum(), leaves)))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_the_size_of_causal_blocks() -> None:
    for length in (1, CAUSAL_BLOCK, CAUSAL_BLOCK + 1, 10 * CAUSAL_BLOCK):
        blocks = list(attention._blocks(length, length, causal=True))
        assert [i for rows, _ in blocks for i in range(length)[rows]] == list(range(length))
        assert all(keys == slice(0, rows.stop) for rows, keys in blocks)
        assert len(blocks) <= attention.CAUSAL_BLOCKS + 1


BATCH, HEADS, SIZE = 3, 4, 8
LENGTH = 24


def made(queries: int = LENGTH, keys: int = LENGTH) -> Tensors:
    """Draw query, key and value."""
    torch.manual_seed(queries)
    lengths = (queries, keys, keys)
    return tuple(torch.randn(BATCH, HEADS, n, SIZE).requires_grad_() for n in lengths)


def padding(lengths: tuple[int, ...] = (LENGTH, 17, 1)) -> torch.Tensor:
    """Return True for visible keys, as transformers makes the mask: (batch, 1, queries, keys)."""
    seen = torch.arange(LENGTH) < torch.tensor(lengths).unsqueeze(1)
    return seen[:, None, None, :].expand(-1, 1, LENGTH, -1)


def test_another_mask_is_not_taken_for_the_last_one() -> None:
    ours, tensors = function_of(with_dropout=True), made()
    for lengths in ((LENGTH, 17, 1), (2, 3, 4), (LENGTH, 17, 1)):
        mask = padding(lengths)
        found = ours(*tensors, attn_mask=mask)
        assert torch.allclose(found, torch_attention(*tensors, attn_mask=mask), atol=1e-6)


def test_a_mask_that_was_changed_in_place() -> None:
    ours, tensors = function_of(with_dropout=True), made()
    mask = padding().clone()
    ours(*tensors, attn_mask=mask)
    mask[:, :, :, 5:] = False
    assert torch.allclose(
        ours(*tensors, attn_mask=mask), torch_attention(*tensors, attn_mask=mask), atol=1e-6
    )


def test_dropout_that_is_not_wanted() -> None:
    tensors = made()
    ours = function_of(with_dropout=False)
    assert torch.equal(ours(*tensors, dropout_p=0.5), ours(*tensors))
    with torch.no_grad():
        assert torch.equal(ours(*tensors, dropout_p=0.5), torch_attention(*tensors))


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Record the arguments of calls of torch's own function."""
    seen: list[dict[str, Any]] = []

    def spy(*args: torch.Tensor | None, **kwargs: Any) -> torch.Tensor:
        seen.append(kwargs)
        found: torch.Tensor = torch_attention(*args, **kwargs)
        return found

    monkeypatch.setattr(patching, "torch_attention", spy)
    return seen


def test_what_is_left_to_torch(calls: list[dict[str, Any]]) -> None:
    ours, tensors = function_of(with_dropout=True), made()
    ours(*tensors)
    assert not calls
    with torch.no_grad():
        ours(*tensors)
    ours(*(x.detach() for x in tensors))
    ours(*(x[0] for x in tensors))
    ours(*tensors, attn_mask=torch.ones(LENGTH, LENGTH, dtype=torch.bool))
    ours(*(x.double() for x in tensors))
    ours(*made(7, keys=19), is_causal=True)
    assert len(calls) == 6
    function_of(with_dropout=True, max_length=LENGTH - 1)(*tensors, dropout_p=0.25, scale=0.5)
    assert len(calls) == 7
    assert (calls[-1]["dropout_p"], calls[-1]["scale"]) == (0.25, 0.5)
    function_of(with_dropout=True, max_length=LENGTH)(*tensors)
    assert len(calls) == 7


def test_long_documents_are_left_to_torch(calls: list[dict[str, Any]]) -> None:
    """Documents with many tokens go to torch; here, each token has the queries of two heads."""
    query, key, value = (torch.randn(1, n, 48, 8).requires_grad_() for n in (4, 2, 2))
    for lengths, longest, left in (([20, 28], 28, 0), ([20, 28], 20, 1), ([7, 41], 6, 2)):
        for causal in (True, False):
            calls.clear()
            mask, ours = (
                document_mask(lengths, causal),
                function_of(with_dropout=True, max_length=longest),
            )
            ours(query, key, value, mask, enable_gqa=True)
            assert len(calls) == left


def test_types_that_differ(calls: list[dict[str, Any]]) -> None:
    """Rotary positions in fp32 cause different types; under autocast, all are cast, as in torch."""
    for places in ((0,), (0, 1), (2,)):
        tensors = [x.bfloat16() if i in places else x for i, x in enumerate(made())]
        with torch.autocast("cpu", torch.bfloat16):
            found = function_of(with_dropout=True)(*tensors)
            exact = torch_attention(*tensors)
        assert found.dtype == torch.bfloat16
        assert torch.allclose(found.float(), exact.float(), atol=0.02)
    assert calls == []


@pytest.mark.parametrize("shape", [(1, 1), (1, HEADS), (BATCH, 1), (BATCH, HEADS)])
def test_a_mask_that_is_learned_gets_its_gradient(
    calls: list[dict[str, Any]], shape: tuple[int, int]
) -> None:
    """A trainable mask gets its gradient, such as T5's relative positions plus padding."""
    gradients = []
    hidden = torch.zeros(BATCH, 1, 1, LENGTH)
    hidden[0, ..., 5:] = torch.finfo(torch.float32).min
    for function in (function_of(with_dropout=True), torch_attention):
        tensors = [x.detach().requires_grad_() for x in made()]
        learned = torch.linspace(-1, 1, math.prod(shape) * LENGTH**2).view(*shape, LENGTH, LENGTH)
        learned.requires_grad_()
        function(*tensors, attn_mask=learned + hidden).square().sum().backward()
        gradients.append([learned.grad, *(x.grad for x in tensors)])
    assert calls == []
    for found, exact in zip(*gradients, strict=True):
        assert torch.allclose(found, exact, atol=1e-5)


@pytest.mark.parametrize("library", LIBRARIES)
@given(case=cases() | cases(masked=True), few=st.sampled_from([0, 1 << 16]))
def test_multiply_adds_on_any_cpu(library: str, case: Case, few: int) -> None:
    """Multiply-adds compute attention in bf16 even if tiles or torch usually would."""
    loaded = simd.load(Path(simd.__file__).with_name(library))
    in_bf16 = library == "libavx512.so" and rights.has_flag("avx512_bf16")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simd, "loaded_library", lambda: loaded)
        patch.setattr(attention_heads, "has_amx", lambda: False)
        patch.setattr(attention_heads, "adds_bf16", lambda: in_bf16)
        check(case, few=few)


def test_which_heads_have_a_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_heads, "has_amx", lambda: True)
    monkeypatch.setattr(attention_heads, "adds_bf16", lambda: False)

    def takes(queries: int, keys: int, size: int, value_size: int, dtype: torch.dtype) -> bool:
        sizes = ((queries, size), (keys, size), (keys, value_size))
        return attention_heads.takes(*(torch.empty(1, 1, *one, dtype=dtype) for one in sizes))

    bf16 = torch.bfloat16
    assert takes(100, 100, 64, 64, bf16)
    assert takes(4096, 1024, 32, 32, bf16)
    assert takes(4096, 1024, 32, 32, torch.float32)
    for other in (
        (100, 100, 64, 64, torch.float64), (100, 100, 80, 80, bf16), (100, 100, 64, 32, bf16),
        (1, 1025, 64, 64, bf16), (4097, 1024, 32, 32, bf16), (0, 5, 32, 32, bf16),
        (5, 0, 32, 32, bf16),
    ):  # fmt: skip
        assert not takes(*other), other
    heads = torch.empty(1, 2, 40, 32, dtype=bf16)
    assert attention_heads.takes(heads, heads, heads)
    # numbers of keys and values that differ, and other samples and heads
    for wrong in (heads[:, :, :39], heads.expand(2, -1, -1, -1), heads[:, :1]):
        assert not attention_heads.takes(heads, heads, wrong)
        assert not attention_heads.takes(heads, wrong, heads)
        assert not attention_heads.takes(heads, heads, wrong, [40])
    assert attention_heads.takes(heads, heads[:, :1], heads[:, :1], [39, 1])
    for lengths in ([39], [40, 1], [40, 0], [41, -1]):
        assert not attention_heads.takes(heads, heads, heads, lengths), lengths
    for wrong in (heads[:, :0], heads[:, :, :39], torch.empty(1, 3, 40, 32, dtype=bf16)):
        assert not attention_heads.takes(heads, wrong, wrong, [40])
    assert not attention_heads.takes(heads, heads.float(), heads)
    monkeypatch.setattr(attention_heads, "has_amx", lambda: False)
    assert not attention_heads.takes(heads, heads, heads)
    monkeypatch.setattr(attention_heads, "adds_bf16", lambda: True)
    assert attention_heads.takes(heads, heads, heads)
    long = torch.empty(1, 1, 2000, 32, dtype=bf16)
    assert attention_heads.takes(long, long, long, [1000, 1000])
    assert not attention_heads.takes(long, long, long, [1025, 975])
