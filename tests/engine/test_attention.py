"""The plain products against torch's own attention, which is written out in one place there."""

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from ftcluster_train.kernels import attention
from ftcluster_train.kernels.attention import (
    CAUSAL_BLOCK,
    CAUSAL_BLOCKS,
    Attention,
    torch_attention,
)

BATCH, HEADS, SIZE = 3, 4, 8
LENGTH = 24
# of the largest value of a tensor
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 2e-2}

Tensors = tuple[torch.Tensor, ...]


def made(
    length: int = LENGTH, dtype: torch.dtype = torch.float32, groups: int = 1, keys: int = 0
) -> Tensors:
    """Query, key and value."""
    torch.manual_seed(length)
    shapes = [(HEADS, length), *[(HEADS // groups, keys or length)] * 2]
    return tuple(
        torch.randn(BATCH, heads, rows, SIZE).to(dtype).requires_grad_() for heads, rows in shapes
    )


def padding(lengths: tuple[int, ...] = (LENGTH, 17, 1)) -> torch.Tensor:
    """True where a key is seen, as transformers makes it: (batch, 1, queries, keys)."""
    seen = torch.arange(LENGTH) < torch.tensor(lengths).unsqueeze(1)
    return seen[:, None, None, :].expand(-1, 1, LENGTH, -1)


def both(function: Any, tensors: Tensors, upstream: torch.Tensor, **options: Any) -> Tensors:
    """Output and gradients."""
    found = function(*tensors, **options)
    return (found.detach(), *torch.autograd.grad(found, tensors, upstream.to(found.dtype)))


def check(tensors: Tensors, **options: Any) -> None:
    """Output and all gradients are those of torch's formula, computed in fp64."""
    upstream = torch.randn(tensors[0].shape)
    found = both(Attention(with_dropout=True), tensors, upstream, **options)
    exact = tuple(x.detach().double().requires_grad_() for x in tensors)
    mask = options.get("attn_mask")
    if mask is not None and mask.is_floating_point():
        options["attn_mask"] = mask.double()
    with sdpa_kernel(SDPBackend.MATH):
        wanted = both(torch_attention, exact, upstream, **options)
    for one, other in zip(found, wanted, strict=True):
        assert one.dtype == tensors[0].dtype
        largest = other.abs().max().clamp(min=1e-3)  # one key alone has a gradient of 0
        worst = float((one.double() - other).abs().max() / largest)
        assert worst < TOLERANCE[one.dtype]


OPTIONS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "padding": {"attn_mask": padding()},
    "a mask for all": {"attn_mask": torch.rand(1, 1, LENGTH, LENGTH) < 0.7},
    "numbers": {"attn_mask": torch.randn(BATCH, 1, LENGTH, LENGTH)},
    "numbers a head": {"attn_mask": torch.randn(1, HEADS, LENGTH, LENGTH)},
    "scale": {"scale": 0.7},
    "causal": {"is_causal": True},
}


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_outputs_and_gradients(options: Mapping[str, Any], dtype: torch.dtype) -> None:
    given = dict(options)
    mask = given.get("attn_mask")
    if mask is not None and mask.is_floating_point():
        given["attn_mask"] = mask.to(dtype)
    check(made(dtype=dtype), **given)


@pytest.mark.parametrize(
    "length",
    [
        1, 5, CAUSAL_BLOCK - 1, CAUSAL_BLOCK, CAUSAL_BLOCK + 1, 2 * CAUSAL_BLOCK,
        2 * CAUSAL_BLOCK + 37, CAUSAL_BLOCK * CAUSAL_BLOCKS,
    ],
)  # fmt: skip
def test_causal_blocks(length: int) -> None:
    check(made(length), is_causal=True)


def test_causal_blocks_that_do_not_divide_the_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "CAUSAL_BLOCK", 4)
    for length in (31, 32, 33, 67):  # of more than 8 blocks of 4 the blocks become larger
        check(made(length), is_causal=True)


@pytest.mark.parametrize("groups", [2, HEADS])
@pytest.mark.parametrize("causal", [False, True])
def test_groups_of_heads_that_share_their_keys(groups: int, causal: bool) -> None:
    check(made(groups=groups), enable_gqa=True, is_causal=causal)


def test_more_keys_than_queries() -> None:
    check(made(7, keys=19))


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_a_row_that_sees_nothing_is_a_number(dtype: torch.dtype) -> None:
    tensors = made(dtype=dtype)
    mask = padding((LENGTH, 3, 0))
    least = torch.zeros(mask.shape, dtype=dtype).masked_fill_(~mask, torch.finfo(dtype).min)
    for given in (mask, least):
        found = both(
            Attention(with_dropout=True), tensors, torch.ones(tensors[0].shape), attn_mask=given
        )
        assert all(tensor.isfinite().all() for tensor in found)


def test_another_mask_is_not_taken_for_the_last_one() -> None:
    ours, tensors = Attention(with_dropout=True), made()
    for lengths in ((LENGTH, 17, 1), (2, 3, 4), (LENGTH, 17, 1)):
        mask = padding(lengths)
        found = ours(*tensors, attn_mask=mask)
        assert torch.allclose(found, torch_attention(*tensors, attn_mask=mask), atol=1e-6)


def test_a_mask_that_was_changed_in_place() -> None:
    ours, tensors = Attention(with_dropout=True), made()
    mask = padding().clone()
    ours(*tensors, attn_mask=mask)
    mask[:, :, :, 5:] = False
    assert torch.allclose(
        ours(*tensors, attn_mask=mask), torch_attention(*tensors, attn_mask=mask), atol=1e-6
    )


def test_dropout_keeps_the_mean() -> None:
    ours, tensors = Attention(with_dropout=True), made()
    plain = ours(*tensors).detach()
    draws = 400
    total = torch.zeros_like(plain)
    squares = torch.zeros_like(plain)
    for seed in range(draws):
        torch.manual_seed(seed)
        found = ours(*tensors, dropout_p=0.2).detach()
        total += found
        squares += found**2
    mean = total / draws
    sigma = ((squares / draws - mean**2) / draws).sqrt()
    assert float(sigma.min()) > 0
    assert float(((mean - plain) / sigma).abs().max()) < 5.5  # of 2304 numbers


def test_the_gradients_are_those_of_the_shares_that_were_kept() -> None:
    ours, tensors = Attention(with_dropout=True), made()
    torch.manual_seed(3)
    found = both(ours, tensors, torch.ones(tensors[0].shape), dropout_p=0.3)

    def value(index: int, move: torch.Tensor) -> float:
        moved = [x.detach() + move if i == index else x.detach() for i, x in enumerate(tensors)]
        torch.manual_seed(3)
        found = ours(moved[0].requires_grad_(), *moved[1:], dropout_p=0.3)
        return float(found.detach().double().sum())

    for index, gradient in enumerate(found[1:]):
        direction = gradient / gradient.norm()
        slope = (value(index, 1e-2 * direction) - value(index, -1e-2 * direction)) / 2e-2
        assert slope == pytest.approx(float(gradient.norm()), rel=1e-2)


def test_dropout_that_is_not_wanted() -> None:
    tensors = made()
    ours = Attention(with_dropout=False)
    assert torch.equal(ours(*tensors, dropout_p=0.5), ours(*tensors))
    with torch.no_grad():
        assert torch.equal(ours(*tensors, dropout_p=0.5), torch_attention(*tensors))


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What torch's own function was called with."""
    seen: list[dict[str, Any]] = []

    def spy(*args: torch.Tensor | None, **kwargs: Any) -> torch.Tensor:
        seen.append(kwargs)
        found: torch.Tensor = torch_attention(*args, **kwargs)
        return found

    monkeypatch.setattr(attention, "torch_attention", spy)
    return seen


def test_what_is_left_to_torch(calls: list[dict[str, Any]]) -> None:
    ours, tensors = Attention(with_dropout=True), made()
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
    Attention(with_dropout=True, max_length=LENGTH - 1)(*tensors, dropout_p=0.25, scale=0.5)
    assert len(calls) == 7
    assert (calls[-1]["dropout_p"], calls[-1]["scale"]) == (0.25, 0.5)
    Attention(with_dropout=True, max_length=LENGTH)(*tensors)
    assert len(calls) == 7


def test_types_that_differ(calls: list[dict[str, Any]]) -> None:
    """As rotary positions in fp32 make them; under autocast torch's function casts them."""
    for places in ((0,), (0, 1), (2,)):
        tensors = [x.bfloat16() if i in places else x for i, x in enumerate(made())]
        with torch.autocast("cpu", torch.bfloat16):
            found = Attention(with_dropout=True)(*tensors)
        assert found.dtype == torch.bfloat16
    assert len(calls) == 3


def test_a_mask_that_is_learned_gets_its_gradient() -> None:
    """As the relative positions of T5 and its kind."""
    tensors, gradients = made(), []
    for function in (Attention(with_dropout=True), torch_attention):
        mask = torch.linspace(-1, 1, LENGTH * LENGTH).view(1, 1, LENGTH, LENGTH).requires_grad_()
        function(*tensors, attn_mask=mask).square().sum().backward()
        gradients.append(mask.grad)
    assert gradients[0] is not None
    assert torch.allclose(gradients[0], gradients[1], atol=1e-5)
