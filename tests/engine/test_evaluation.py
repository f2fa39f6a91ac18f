"""Metrics of an evaluation, compared with transformers' Trainer."""

import math
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import Trainer, TrainingArguments

from ftcluster_train.comm.world import World
from ftcluster_train.engine.evaluation import evaluate
from ftcluster_train.engine.models import call_model
from tests.engine.jobs import make_job, make_samples, make_task_of, write_samples
from tests.engine.models import make_model


# Trainer counts GPT-2's first token as a target although nothing predicts it (5.23)
@pytest.mark.parametrize(
    ("name", "kind", "head", "factor"),
    [("text-classification", "bert", "classifier", 40), ("causal-lm", "llama", "lm_head", 20)],
)
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_the_loss_is_that_of_transformers_without_smoothing(
    tmp_path: Path, world: World, name: str, kind: str, head: str, factor: int, smoothing: float
) -> None:
    samples = make_samples(name, 30, length=12)
    task = make_task_of(make_job(tmp_path / "job", name, label_smoothing_factor=smoothing))
    model = make_model(kind, name)
    with torch.no_grad():
        getattr(model, head).weight.mul_(factor)  # makes losses differ between samples
    found = evaluate(
        task, model, {"validation": write_samples(tmp_path / "set", samples)}, world, bf16=False
    ).metrics
    rows = [
        {"input_ids": s["input_ids"], "labels": s["label"][0] if "label" in s else s["input_ids"]}
        for s in samples
    ]
    arguments = TrainingArguments(
        tmp_path / "theirs", per_device_eval_batch_size=10, use_cpu=True, report_to="none",
        disable_tqdm=True,
    )  # fmt: skip
    wanted = Trainer(model, arguments, eval_dataset=rows).evaluate()["eval_loss"]
    assert found.pop("loss") == pytest.approx(wanted, rel=1e-5)
    if name == "causal-lm":
        assert found == {"perplexity": pytest.approx(math.exp(wanted), rel=1e-4)}
    else:
        assert list(found) == ["accuracy", "f1_macro"]


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
