"""A mixture of experts adds its router's loss to the loss, as in transformers."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from ftcluster_train.engine.models import call_model
from ftcluster_train.engine.progress import ProgressLog
from ftcluster_train.engine.tasks.base import Task
from ftcluster_train.patching.patch_model import Optimizations, patch_model
from tests.engine.jobs import make_job, make_task_of
from tests.engine.models import SIZES, VOCABULARY

ROWS, LENGTH = 4, 16
KINDS: dict[str, dict[str, Any]] = {
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen2_moe": {
        "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
        "shared_expert_intermediate_size": 24,
    },
}  # fmt: skip
COEFFICIENT = 0.5  # large, so that the effect is visible


def make_experts(kind: str, counted: bool = True) -> PreTrainedModel:
    config = AutoConfig.for_model(
        kind, **SIZES, vocab_size=VOCABULARY, intermediate_size=48, num_key_value_heads=2,
        output_router_logits=counted, router_aux_loss_coef=COEFFICIENT, pad_token_id=0,
        **KINDS[kind],
    )  # fmt: skip
    torch.manual_seed(1)
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32)


def gradients(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def learned(
    model: PreTrainedModel, task: Task, tokens: torch.Tensor, optimizations: Optimizations
) -> float:
    """Return our loss, a mean over the rows, after the backward pass."""
    task.check_model(model)
    kernels = patch_model(model, task, True, optimizations, ProgressLog())
    model.train()
    with kernels:
        outputs = call_model(model, {"input_ids": tokens, "use_cache": False})
        loss = task.loss(outputs, {"tokens": tokens}) / ROWS
        loss.backward()
    return loss.item()


@pytest.mark.parametrize(
    "optimizations", [Optimizations(), Optimizations(cross_entropy=False)], ids=["hidden", "logits"]
)
@pytest.mark.parametrize("kind", KINDS)
def test_the_routers_loss_is_transformers_own(
    tmp_path: Path, kind: str, optimizations: Optimizations
) -> None:
    model, tokens = make_experts(kind), torch.randint(4, VOCABULARY, (ROWS, LENGTH))
    plain = copy.deepcopy(model).train()
    wanted = plain(input_ids=tokens, labels=tokens, use_cache=False)
    wanted.loss.backward()
    task = make_task_of(make_job(tmp_path, "causal-lm"))
    assert learned(model, task, tokens, optimizations) == pytest.approx(
        wanted.loss.item(), rel=1e-5
    )
    assert wanted.aux_loss.item() > 0.5  # the router's loss is a large part of the loss
    found = gradients(model)
    assert found.keys() == gradients(plain).keys()
    for name, gradient in gradients(plain).items():
        assert torch.allclose(found[name], gradient, rtol=1e-4, atol=1e-6), name


@pytest.mark.parametrize("kind", KINDS)
def test_a_router_whose_loss_is_not_counted(tmp_path: Path, kind: str) -> None:
    """By default, transformers ignores the router's loss too."""
    model, tokens = make_experts(kind, counted=False), torch.randint(4, VOCABULARY, (ROWS, LENGTH))
    wanted = copy.deepcopy(model)(input_ids=tokens, labels=tokens, use_cache=False)
    assert wanted.aux_loss is None
    task = make_task_of(make_job(tmp_path, "causal-lm"))
    assert learned(model, task, tokens, Optimizations()) == pytest.approx(
        wanted.loss.item(), rel=1e-5
    )
