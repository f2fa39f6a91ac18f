"""The loss without fp32 logits equals torch's, and is used if a model's logits allow it."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import (
    AutoModelForCausalLM,
    BertConfig,
    CohereConfig,
    Gemma2Config,
    GraniteConfig,
    PretrainedConfig,
    PreTrainedModel,
)

from ftcluster_kernels import cross_entropy as kernel
from ftcluster_kernels import products
from ftcluster_kernels.cross_entropy import (
    ALIGNMENT,
    ROWS,
    linear_cross_entropy,
    token_losses,
)
from ftcluster_kernels.token_rows import TokenRows
from ftcluster_train.patching.kernel_mode import KernelMode, find_head
from tests.engine.drawn import ROUNDOFF, TINY, check_near, dtypes, tensors, unit
from tests.engine.models import SIZES, VOCABULARY, make_model

FP32 = ROUNDOFF[torch.float32]
# values on both sides of the sizes at which rows are cut and columns are padded
rows = st.sampled_from([1, ROWS - 1, ROWS, ROWS + 1, 2 * ROWS + 5]) | st.integers(1, 3 * ROWS)
columns = st.sampled_from([1, 2, ALIGNMENT - 1, ALIGNMENT, ALIGNMENT + 1]) | st.integers(
    1, 3 * ALIGNMENT
)
large = st.sampled_from([1.0, 1e-3, 10.0])


@given(rows, columns, st.integers(1, 24), dtypes, dtypes, st.sampled_from([1.0, 0.37, 1e-3, 64.0]),
       st.data())  # fmt: skip
def test_loss_and_gradients(
    count: int, vocabulary: int, width: int, of_hidden: torch.dtype, dtype: torch.dtype,
    scale: float, data: Any,
) -> None:  # fmt: skip
    check(count, vocabulary, width, of_hidden, dtype, scale, data)


def check(
    count: int, vocabulary: int, width: int, of_hidden: torch.dtype, dtype: torch.dtype,
    scale: float, data: Any,
) -> None:  # fmt: skip
    """Check the loss and its gradients for drawn values."""
    hidden = data.draw(tensors((count, width), of_hidden, large)).requires_grad_()
    weight = data.draw(tensors((vocabulary, width), dtype, large))
    if data.draw(st.booleans()):  # as part of a flat tensor, followed by other weights
        weight = torch.cat([weight, torch.full((ALIGNMENT, width), 1e4, dtype=dtype)])[:vocabulary]
    weight.requires_grad_()
    numbers = torch.Generator().manual_seed(data.draw(st.integers(0, 2**32)))
    tokens = torch.randint(vocabulary, (count,), generator=numbers)
    with pytest.MonkeyPatch.context() as patch:
        if data.draw(st.booleans()):  # the logits of ROWS tokens at once
            patch.setattr(kernel, "LOGITS", 1)
        found = linear_cross_entropy(hidden, weight, tokens)
    gradients = torch.autograd.grad(found * scale, (hidden, weight))
    assert found.dtype == torch.float32
    assert [g.dtype for g in gradients] == [of_hidden, dtype]

    h, w = hidden.detach().double(), weight.detach().double()
    logits = h @ w.T
    wanted = torch.nn.functional.one_hot(tokens, vocabulary).double()
    losses = torch.logsumexp(logits, -1) - (logits * wanted).sum(-1)
    shares = torch.softmax(logits, -1)
    of_logits = (shares - wanted) * scale

    # hidden states and logits are rounded; subtracted values and sums are in fp32
    u = unit(dtype, max(width, vocabulary, count))
    off = 2 * u * (h.abs() @ w.abs().T).amax(-1, keepdim=True)
    spread = logits.amax(-1) - logits.amin(-1)
    of_loss = 2 * off.squeeze(1) + FP32 * (2 * spread + losses + 2 * vocabulary)
    check_near(found, losses.sum(), (of_loss + count * FP32 * losses).sum())
    relative = torch.where(off < 1, torch.expm1(2 * off) + (vocabulary + 8) * FP32, torch.inf)
    error = (shares * relative + TINY).nan_to_num(torch.inf).clamp(max=1 + u)
    error = (error + u * (shares - wanted).abs() + (shares + wanted) * FP32) * scale
    most = of_logits.abs() + error
    bounds = ((error + 3 * u * most) @ w.abs(), (error + 4 * u * most).T @ h.abs())
    for gradient, exact, bound in zip(
        gradients, (of_logits @ w, of_logits.T @ h), bounds, strict=True
    ):
        check_near(gradient, exact, bound + ROUNDOFF[gradient.dtype] * (exact.abs() + bound))


@pytest.mark.needs("amx", "compiler")
@given(st.integers(1, 3 * ROWS), st.integers(1, 3 * ALIGNMENT), st.sampled_from([32, 96]),
       st.sampled_from([1.0, 0.37]), st.booleans(), st.data())  # fmt: skip
def test_on_tiles(
    count: int, vocabulary: int, width: int, scale: float, deep: bool, data: Any
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("FEWEST_ROWS", "NARROWEST"):
            patch.setattr(products, name, 1)
        if deep:  # a sum over so many logits that they do not fit into the cache
            patch.setattr(products, "PANEL_ROWS", products.PANEL)
        check(count, vocabulary, width, torch.bfloat16, torch.bfloat16, scale, data)


def test_large_logits_are_no_infinity() -> None:
    hidden = torch.tensor([[200.0, 0.0], [0.0, -200.0]], requires_grad=True)
    loss = linear_cross_entropy(hidden, torch.eye(2) * 5, torch.tensor([1, 0]))
    loss.backward()
    assert loss.item() == pytest.approx(1000, rel=1e-6)
    assert hidden.grad is not None
    assert hidden.grad.isfinite().all()


Config = tuple[type[PretrainedConfig], dict[str, object]]


def make_other(config_class: type[PretrainedConfig], fields: dict[str, object]) -> PreTrainedModel:
    return AutoModelForCausalLM.from_config(
        config_class(
            vocab_size=VOCABULARY, intermediate_size=64, num_key_value_heads=2, pad_token_id=0,
            bos_token_id=2, eos_token_id=3, **SIZES, **fields,
        )
    )  # fmt: skip


def check_head(model: PreTrainedModel) -> None:
    head = find_head(model)
    assert head is model.get_output_embeddings().weight
    tokens = torch.arange(10).unsqueeze(0)
    wanted = model(input_ids=tokens, use_cache=False).logits
    with KernelMode(head=head):
        hidden = model(input_ids=tokens, use_cache=False).logits
    assert torch.allclose(hidden @ head.T, wanted, atol=1e-6)


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_heads_that_are_found(kind: str) -> None:
    check_head(make_model(kind, "causal-lm"))


FACTORS: dict[str, Config] = {
    "divided": (GraniteConfig, {"logits_scaling": 8.0}),
    "multiplied": (CohereConfig, {"logit_scale": 0.0625}),
    "not capped": (Gemma2Config, {"final_logit_softcapping": None, "head_dim": 16}),
}


@pytest.mark.parametrize("name", FACTORS)
def test_a_factor_of_the_logits_is_one_of_the_hidden_states(name: str) -> None:
    check_head(make_other(*FACTORS[name]))


OTHERS: dict[str, Config] = {
    "capped": (Gemma2Config, {"final_logit_softcapping": 30.0, "head_dim": 16}),
    # random weights give small logits, which this function hardly changes before training
    "hardly capped": (Gemma2Config, {"final_logit_softcapping": 300.0, "head_dim": 16}),
    "biased": (BertConfig, {"is_decoder": True}),
}


@pytest.mark.parametrize("name", OTHERS)
def test_logits_that_are_no_product(name: str) -> None:
    assert find_head(make_other(*OTHERS[name])) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("at_once", [1, 1 << 27], ids=["parts", "whole"])
@pytest.mark.parametrize("by_torch", [False, True])
def test_trained_rows_have_the_gradient_of_the_whole_weight(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, at_once: int, by_torch: bool
) -> None:
    """A frozen weight with trained rows gives these rows the gradient that all rows would have."""
    monkeypatch.setattr(kernel, "LOGITS", at_once)
    torch.manual_seed(0)
    count, vocabulary, width = 3 * ROWS + 1, 70, 12
    hidden = torch.randn(count, width).to(dtype).requires_grad_()
    weight = torch.randn(vocabulary, width).to(dtype)
    tokens, factors = torch.randint(vocabulary, (count,)), torch.randn(count)
    ids = torch.tensor([0, 5, vocabulary - 1])
    values = torch.nn.Parameter(weight[ids].float())
    rows = TokenRows(ids, values)
    for function in (linear_cross_entropy, token_losses):
        whole = weight.clone().requires_grad_()
        losses = [
            (function(hidden, whole, tokens) * factors).sum(),
            (function(hidden, weight, tokens, rows=rows) * factors).sum(),
        ]
        torch.testing.assert_close(losses[1], losses[0])
        expected = torch.autograd.grad(losses[0], (hidden, whole))
        # second derivatives need a backward pass that torch computes
        found = torch.autograd.grad(losses[1], (hidden, values), create_graph=by_torch)
        assert found[1].dtype == torch.float32
        tolerance = {"rtol": 1e-4, "atol": 1e-4} if dtype == torch.float32 else {
            "rtol": 3e-2, "atol": 0.3,
        }  # fmt: skip
        torch.testing.assert_close(found[0], expected[0], **tolerance)
        torch.testing.assert_close(found[1], expected[1][ids].float(), **tolerance)
