"""What an evaluation measures, against what transformers' Trainer does."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import Trainer, TrainingArguments

from ftcluster_train.distributed.world import World
from ftcluster_train.training.loop import evaluate
from ftcluster_train.training.models import call_model
from tests.engine.jobs import make_job, make_samples, make_task_of, write_samples
from tests.engine.models import make_model


def loss_of_trainer(
    folder: Path, model: Any, rows: list[dict[str, Any]], smoothing: float
) -> float:
    """What transformers' Trainer says that the loss of these rows is."""
    arguments = TrainingArguments(
        folder, per_device_eval_batch_size=10, use_cpu=True, report_to="none", disable_tqdm=True,
        label_smoothing_factor=smoothing,
    )  # fmt: skip
    loss: float = Trainer(model, arguments, eval_dataset=rows).evaluate()["eval_loss"]
    return loss


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_the_loss_of_classes_is_that_of_transformers(
    tmp_path: Path, world: World, smoothing: float
) -> None:
    samples = make_samples("text-classification", 30, length=12)
    task = make_task_of(
        make_job(tmp_path / "job", "text-classification", label_smoothing_factor=smoothing)
    )
    model = make_model("bert")
    with torch.no_grad():
        model.classifier.weight.mul_(40)  # losses that differ from sample to sample
    found = evaluate(
        task, model, {"validation": write_samples(tmp_path / "set", samples)}, world, bf16=False
    )
    rows = [{"input_ids": s["input_ids"], "labels": s["label"][0]} for s in samples]
    wanted = loss_of_trainer(tmp_path / "theirs", model, rows, smoothing)
    assert found["loss"] == pytest.approx(wanted, rel=1e-5)
    assert list(found) == ["accuracy", "loss"]


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_the_loss_of_tokens_is_that_of_transformers(
    tmp_path: Path, world: World, smoothing: float
) -> None:
    samples = make_samples("causal-lm", 30)
    task = make_task_of(make_job(tmp_path / "job", "causal-lm", label_smoothing_factor=smoothing))
    # of GPT-2's Trainer takes the first token, which nothing predicts, for a target (5.23)
    model = make_model("llama", "causal-lm")
    with torch.no_grad():
        model.lm_head.weight.mul_(20)
    found = evaluate(
        task, model, {"validation": write_samples(tmp_path / "set", samples)}, world, bf16=False
    )
    rows = [{"input_ids": s["input_ids"], "labels": s["input_ids"]} for s in samples]
    wanted = loss_of_trainer(tmp_path / "theirs", model, rows, smoothing)
    assert found["loss"] == pytest.approx(wanted, rel=1e-5)
    assert found["perplexity"] == pytest.approx(math.exp(wanted), rel=1e-4)


def test_a_model_is_not_given_what_it_does_not_take() -> None:
    class Narrow(nn.Module):  # type: ignore[misc]
        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
            return input_ids * attention_mask

    class Wide(nn.Module):  # type: ignore[misc]
        def forward(self, input_ids: torch.Tensor, **others: torch.Tensor) -> list[str]:
            return [*others, str(input_ids.shape[0])]

    ones = torch.ones(2, 3)
    given = {"input_ids": ones, "attention_mask": ones, "token_type_ids": ones}
    assert torch.equal(call_model(Narrow(), given), ones)
    assert call_model(Wide(), given) == ["attention_mask", "token_type_ids", "2"]
