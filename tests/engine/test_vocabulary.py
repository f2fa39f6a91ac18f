"""The loss without logits in fp32 is torch's, and is taken where a model's logits allow it."""

import pytest
import torch
from torch.nn import functional
from transformers import (
    AutoModelForCausalLM,
    BertConfig,
    CohereConfig,
    Gemma2Config,
    GraniteConfig,
    PretrainedConfig,
    PreTrainedModel,
)

from ftcluster_train.kernels.function_overrides import FunctionOverrides
from ftcluster_train.kernels.linear_cross_entropy import ROWS, find_head, linear_cross_entropy
from tests.engine.models import SIZES, VOCABULARY, make_model

HIDDEN = 16


@pytest.mark.parametrize("rows", [1, ROWS - 1, ROWS, 3 * ROWS + 5])
@pytest.mark.parametrize("vocabulary", [2, 63, 64, 65, 128, 200])
@pytest.mark.parametrize("scale", [1.0, 0.37])
def test_loss_and_gradients(vocabulary: int, rows: int, scale: float) -> None:
    hidden, weight = torch.randn(rows, HIDDEN), torch.randn(vocabulary, HIDDEN)
    tokens = torch.randint(vocabulary, (rows,))
    made = []
    for own in (True, False):
        inputs = [x.clone().requires_grad_() for x in (hidden, weight)]
        if own:
            loss = linear_cross_entropy(*inputs, tokens)
        else:
            loss = functional.cross_entropy(inputs[0] @ inputs[1].T, tokens, reduction="sum")
        (loss * scale).backward()
        made.append((loss.detach(), *(x.grad for x in inputs)))
    for one, other in zip(*made, strict=True):
        assert torch.allclose(one, other, rtol=1e-5, atol=1e-5)


def test_bf16_is_near_and_its_loss_fp32() -> None:
    hidden, weight = torch.randn(100, HIDDEN).bfloat16(), torch.randn(1000, HIDDEN).bfloat16()
    tokens = torch.randint(1000, (100,))
    made = []
    for own in (True, False):
        inputs = [x.clone().requires_grad_() for x in (hidden, weight)]
        if own:
            with torch.autocast("cpu", torch.bfloat16):
                loss = linear_cross_entropy(*inputs, tokens)
        else:
            exact = inputs[0].double() @ inputs[1].double().T
            loss = functional.cross_entropy(exact, tokens, reduction="sum")
        (loss / 100).backward()
        made.append((loss.detach(), *(x.grad for x in inputs)))
    assert made[0][0].dtype == torch.float32
    assert float(made[0][0]) == pytest.approx(float(made[1][0]), rel=2e-3)
    for one, other in zip(made[0][1:], made[1][1:], strict=True):
        assert one.dtype == torch.bfloat16
        assert (one - other).norm() < 0.02 * other.norm()


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
    with FunctionOverrides({}, head=head):
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
    # random weights have small logits, which this hardly bends before they have learned
    "hardly capped": (Gemma2Config, {"final_logit_softcapping": 300.0, "head_dim": 16}),
    "biased": (BertConfig, {"is_decoder": True}),
}


@pytest.mark.parametrize("name", OTHERS)
def test_logits_that_are_no_product(name: str) -> None:
    assert find_head(make_other(*OTHERS[name])) is None
