"""Properties of attention: what it computes is the formula in fp64, but for its roundings."""

from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import assume, example, given
from hypothesis import strategies as st

from ftcluster_train.kernels import attention
from ftcluster_train.kernels.attention import Attention
from tests.engine.drawn import TINY, check_near, dtypes, tensors, unit

Tensors = tuple[torch.Tensor, ...]
SEEN = -1e29  # a bias below it is a mask


@dataclass(frozen=True)
class Case:
    """A call of attention, and what comes back for its output."""

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


@st.composite
def masks(draw: st.DrawFn, shape: tuple[int, int, int, int]) -> torch.Tensor:
    """Padding left or right, or any; bool, or numbers with -inf or the least number."""
    dtype = draw(dtypes)  # a model's residuals are in fp32, its queries in bf16
    batch, heads, queries, keys = shape
    kind = draw(st.sampled_from(["right", "left", "any", "none is seen"]))
    if kind in ("right", "left"):
        # 0: of a sample of padding alone its queries see no key
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
def cases(draw: st.DrawFn) -> Case:
    dtype = draw(dtypes)
    batch, heads = draw(st.integers(1, 3)), draw(st.sampled_from([1, 2, 4]))
    groups = draw(st.sampled_from([g for g in (1, 2, 4) if heads % g == 0]))
    causal = draw(st.booleans())
    queries = draw(st.integers(1, 40))
    keys = queries if causal else draw(st.integers(1, 40))
    size, value_size = draw(st.integers(1, 20)), draw(st.integers(1, 20))
    shared = (batch, heads // groups, keys)
    mask = None
    if not causal and draw(st.booleans()):
        mask = draw(masks((batch, heads, queries, keys)))
    return Case(
        draw(tensors((batch, heads, queries, size), dtype)),
        draw(tensors((*shared, size), dtype, st.sampled_from([1.0, 0.1, 10.0]))),
        draw(tensors((*shared, value_size), dtype)),
        draw(tensors((batch, heads, queries, value_size), dtype)),
        mask,
        causal,
        draw(st.sampled_from([None, 1.0, 0.3])),
        draw(st.sampled_from([0.0, 0.0, 0.1, 0.5, 1.0])),
        draw(st.integers(0, 2**32)),
    )


def ours(case: Case, block: int) -> tuple[Tensors, torch.Tensor]:
    """Output and gradients, and the factors of dropout: (batch, heads, queries, keys)."""
    drawn: list[torch.Tensor] = []
    plain, before = attention.make_mask, attention.CAUSAL_BLOCK

    def noise(count: int, p: float, seed: int) -> torch.Tensor:
        drawn.append(plain(count, p, seed))
        return drawn[-1]

    attention.make_mask, attention.CAUSAL_BLOCK = noise, block
    try:
        torch.manual_seed(case.seed)
        inputs = [x.clone().requires_grad_() for x in (case.query, case.key, case.value)]
        found = Attention(with_dropout=True)(*inputs, **case.options)
        gradients = torch.autograd.grad(found, inputs, case.upstream)
        batch, heads, queries, _ = case.query.shape
        factors = torch.ones(batch * heads, queries, case.key.shape[2], dtype=torch.float64)
        if drawn:
            blocks = attention._blocks(queries, case.key.shape[2], case.causal)
            for (rows, seen), numbers in zip(blocks, drawn, strict=True):
                part = factors[:, rows, seen]
                part.copy_(numbers.view(part.shape))
    finally:
        attention.make_mask, attention.CAUSAL_BLOCK = plain, before
    return (found.detach(), *gradients), factors.view(batch, heads, queries, -1)


def bias_of(case: Case) -> torch.Tensor:
    """What is added to the scores, of their shape: -inf where a key is not seen."""
    batch, heads, queries, _ = case.query.shape
    bias = torch.zeros(batch, heads, queries, case.key.shape[2], dtype=torch.float64)
    if case.causal:
        bias += torch.full_like(bias, -torch.inf).triu(1)
    if case.mask is not None and case.mask.dtype == torch.bool:
        bias = bias.masked_fill(~case.mask, -torch.inf)
    elif case.mask is not None:
        # as under autocast: the least number of fp32 is -inf in bf16
        bias = bias + case.mask.to(case.query.dtype).double()
    return bias


def check(case: Case, block: int = attention.CAUSAL_BLOCK) -> None:
    """Outputs and gradients are within the error of their roundings."""
    found, factors = ours(case, block)
    batch, heads, queries, size = case.query.shape
    keys = case.key.shape[2]
    groups = heads // case.key.shape[1]
    dtype = case.query.dtype
    scale = size**-0.5 if case.scale is None else case.scale
    query, upstream = case.query.double(), case.upstream.double()
    key, value = (x.double().repeat_interleave(groups, 1) for x in (case.key, case.value))

    bias = bias_of(case)
    scores = query @ key.mT * scale + bias
    # a query that sees no key gets 0 from torch; from the least number, the mean of all values
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

    # the scores' error: query * scale, the product, the bias and adding it are rounded
    u = unit(dtype, max(queries, keys, size, value.shape[-1]))
    products = query.abs() @ key.mT.abs() * abs(scale)
    added = 3 * u * products + 2 * u * torch.where(bias > SEEN, bias.abs(), 0)
    of_row = torch.where((bias > SEEN), added, 0).amax(-1, keepdim=True)
    # the shares' error: exp of that above and below, rounded; where that is much, any share may be
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
    sums = (blocks + groups + 1) * u  # of the keys' and values' gradients
    bounds = (
        (error + 2 * u * most) * factors @ value.abs(),
        (bound + 2 * u * found_scores) @ key.abs() * abs(scale),
        (bound + sums * found_scores).mT @ query.abs() * abs(scale),
        ((error + sums * most) * factors).mT @ upstream.abs(),
    )
    shared = (batch, heads // groups, groups, keys, -1)
    for number, (one, other, allowed) in enumerate(zip(found, exact, bounds, strict=True)):
        assert one.dtype == dtype
        if number > 1:  # heads that share keys sum their gradients
            other, allowed = (x.view(shared).sum(2) for x in (other, allowed))
        check_near(one, other, allowed)


ONE = torch.full((1, 1, 1, 1), 1.5)


@given(cases())
# a query that sees no key by numbers, as torch's it gets 0
@example(Case(ONE, ONE, ONE, ONE, mask=torch.full_like(ONE, -torch.inf)))
@example(Case(*[ONE.bfloat16()] * 4, mask=torch.full_like(ONE, torch.finfo(torch.float32).min)))
def test_attention(case: Case) -> None:
    check(case)


@given(cases(), st.integers(1, 9))
def test_causal_blocks(case: Case, block: int) -> None:
    assume(case.causal)
    check(case, block)
