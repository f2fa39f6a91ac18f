"""T5's position bias and its padding mask stay separate; only our attention reads them so."""

import copy
import inspect
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from torch.nn import functional
from transformers import T5Config, T5ForConditionalGeneration
from transformers.integrations import sdpa_attention

from ftcluster_kernels import attention_heads
from ftcluster_kernels.biased_mask import BiasedMask, biased_mask
from ftcluster_train.engine.progress import ProgressLog
from ftcluster_train.patching import position_bias
from ftcluster_train.patching.attention import Attention, torch_attention
from ftcluster_train.patching.patch_model import Optimizations, patch_model
from ftcluster_train.patching.position_bias import FUNCTION, POSITION_BIAS
from tests.engine.test_patching import Task

SAMPLES, HEADS, LENGTH, SIZE = 4, 2, 40, 32
LOWEST = torch.finfo(torch.float32).min


@pytest.fixture(autouse=True)
def _transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restore transformers' own function, which an earlier test may have replaced."""
    own = inspect.unwrap(getattr(sdpa_attention, FUNCTION))
    monkeypatch.setattr(sdpa_attention, FUNCTION, own)


def padding(*lengths: int) -> torch.Tensor:
    """Return True for visible keys, shape (samples, 1, 1, keys)."""
    return (torch.arange(LENGTH) < torch.tensor(lengths).unsqueeze(1))[:, None, None]


MASKS = {
    "padding behind": padding(40, 33, 7, 1),
    "padding in front": padding(40, 33, 7, 1).flip(-1),
    "a sample of padding": padding(40, 0, 7, 1),
    "causal": torch.ones(SAMPLES, 1, LENGTH, LENGTH, dtype=torch.bool).tril(),
}


@pytest.fixture(params=["loops", pytest.param("tiles", marks=pytest.mark.needs("amx")), "torch"])
def size(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Return a size of heads for which our loops, tiles, or torch's matmuls compute attention."""
    if request.param == "loops":
        monkeypatch.setattr(attention_heads, "has_amx", lambda: False)
    return 20 if request.param == "torch" else SIZE


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("samples", [1, SAMPLES])
@pytest.mark.parametrize("mask", MASKS)
def test_attention_equals_torch(mask: str, samples: int, dtype: torch.dtype, size: int) -> None:
    torch.manual_seed(1)
    made = [torch.randn(SAMPLES, HEADS, LENGTH, size) for _ in range(3)]
    bias = torch.randn(samples, HEADS, LENGTH, LENGTH)
    upstream = torch.randn(SAMPLES, HEADS, LENGTH, size)

    def found(function: Any, of: torch.dtype) -> list[torch.Tensor]:
        leaves = [one.to(dtype).to(of, copy=True).requires_grad_() for one in made]
        learned = bias.to(dtype).to(of, copy=True).requires_grad_()
        lowest = torch.finfo(dtype).min
        output = function(*leaves, biased_mask(learned, MASKS[mask], lowest))
        output.backward(upstream.to(dtype).to(of))
        return [output.detach(), *(one.grad for one in leaves), learned.grad]

    ours = found(Attention(with_dropout=False).patch().function(), dtype)
    exact = found(torch_attention, torch.float64)
    off = 1e-6 if dtype == torch.float32 else 1e-2
    for one, other in zip(ours, exact, strict=True):
        assert (one.double() - other).norm() <= off * other.norm()


def test_the_loops_read_mask_and_bias_separately(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = []
    forward = attention_heads.forward

    def spy(*arguments: Any) -> Any:
        shapes.append(arguments[3].shape)
        return forward(*arguments)

    monkeypatch.setattr(attention_heads, "forward", spy)
    made = [torch.randn(SAMPLES, HEADS, LENGTH, SIZE, requires_grad=True) for _ in range(3)]
    bias = torch.randn(1, HEADS, LENGTH, LENGTH, requires_grad=True)
    ours = Attention(with_dropout=False).patch().function()
    for mask in ("padding behind", "causal"):
        ours(*made, biased_mask(bias, MASKS[mask], LOWEST))
    assert shapes == [bias.shape, (SAMPLES, HEADS, LENGTH, LENGTH)]


def test_functions_of_torch_get_the_joined_mask() -> None:
    bias, seen = torch.randn(1, HEADS, LENGTH, LENGTH), MASKS["padding behind"]
    mask = biased_mask(bias, seen, LOWEST)
    joined = torch.where(seen, bias, LOWEST)
    assert type(mask) is BiasedMask
    assert mask.shape == joined.shape
    for found, exact in (
        (mask + 1, joined + 1), (torch.cat([mask, mask]), torch.cat([joined, joined])),
        (mask[0], joined[0]), (functional.softmax(input=mask, dim=-1), joined.softmax(-1)),
    ):  # fmt: skip
        assert type(found) is torch.Tensor
        assert torch.equal(found, exact)


def test_second_derivatives_of_a_bias() -> None:
    made = [torch.randn(1, 1, 4, SIZE, dtype=torch.float32) for _ in range(3)]
    seen = torch.arange(4).view(1, 1, 1, 4) < 3
    products = []
    for function in (Attention(with_dropout=False).patch().function(), torch_attention):
        leaves = [one.clone().requires_grad_() for one in made]
        bias = torch.linspace(-1, 1, 16).view(1, 1, 4, 4).requires_grad_()
        output = function(*leaves, biased_mask(bias, seen, LOWEST))
        (first,) = torch.autograd.grad(output.square().sum(), bias, create_graph=True)
        products.append(torch.autograd.grad(first.square().sum(), [bias, *leaves]))
    for one, other in zip(*products, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.fixture
def model() -> T5ForConditionalGeneration:
    torch.manual_seed(2)
    config = T5Config(
        vocab_size=60, d_model=48, d_kv=SIZE, num_heads=HEADS, num_layers=2, d_ff=64,
        dropout_rate=0.0, decoder_start_token_id=0,
    )  # fmt: skip
    made = T5ForConditionalGeneration(config).train()
    for stack in (made.encoder, made.decoder):  # new ones are too small to matter
        torch.nn.init.normal_(stack.block[0].layer[0].SelfAttention.relative_attention_bias.weight)
    return made


def gradients(
    model: T5ForConditionalGeneration, mode: AbstractContextManager[Any]
) -> Iterator[torch.Tensor]:
    tokens = torch.arange(3 * 20).view(3, 20)
    labels = tokens[:, :9].contiguous()
    seen = torch.arange(20) < torch.tensor([[20], [13], [2]])
    model.zero_grad()
    with mode:
        model(input_ids=tokens, attention_mask=seen.long(), labels=labels).loss.backward()
    return (one.grad for one in model.parameters())


def test_gradients_of_t5_equal_those_of_transformers(model: T5ForConditionalGeneration) -> None:
    plain = list(gradients(copy.deepcopy(model), nullcontext()))
    for mode in (
        patch_model(model, Task(), True, Optimizations(), ProgressLog()),
        nullcontext(),  # the function stays replaced, and torch's attention gets the joined mask
    ):
        for one, other in zip(gradients(model, mode), plain, strict=True):
            assert (one - other).norm() <= 1e-4 * other.norm()
    assert hasattr(getattr(sdpa_attention, FUNCTION), "__wrapped__")


def test_a_function_that_joins_otherwise_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(inspect.signature(getattr(sdpa_attention, FUNCTION)).parameters) == (
        position_bias.PARAMETERS
    ), f"{FUNCTION} has other arguments: mask and bias would be joined in each layer"

    own = getattr(sdpa_attention, FUNCTION)

    def doubled(
        position_bias: Any, attention_mask: Any, is_causal: Any, query: Any, key: Any
    ) -> torch.Tensor:
        return 2 * own(position_bias, attention_mask, is_causal, query, key)

    monkeypatch.setattr(sdpa_attention, FUNCTION, doubled)
    assert POSITION_BIAS.apply(torch.nn.Module()) == 0
    monkeypatch.delattr(sdpa_attention, FUNCTION)  # as in transformers 4
    assert POSITION_BIAS.apply(torch.nn.Module()) == 0
    monkeypatch.delitem(sys.modules, position_bias.MODULE)
    assert POSITION_BIAS.apply(torch.nn.Module()) == 0


def test_masks_of_earlier_calls_are_not_reused() -> None:
    ours = Attention(with_dropout=False).patch().function()
    made = [torch.randn(SAMPLES, HEADS, LENGTH, SIZE, requires_grad=True) for _ in range(3)]
    for number in range(3):
        bias = torch.randn(1, HEADS, LENGTH, LENGTH)
        mask = biased_mask(bias, MASKS[["padding behind", "causal"][number % 2]], LOWEST)
        torch.testing.assert_close(ours(*made, mask), torch_attention(*made, mask))
