"""Adapters of each task, of GPT-2's layers, and of rsLoRA and DoRA are those of peft."""

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from ftcluster_common.protocol.job import Job
from ftcluster_train.engine import rank
from ftcluster_train.engine.adapters import add_adapters, merge_adapters, save_adapters
from ftcluster_train.engine.data.run_inputs import read_inputs, write_inputs
from ftcluster_train.engine.data.token_samples import Sample
from ftcluster_train.engine.models import call_model
from ftcluster_train.engine.prepare import prepare
from ftcluster_train.engine.tasks.base import Task
from ftcluster_train.patching.batch_context import context_of
from ftcluster_train.patching.kernel_mode import KernelMode
from tests.engine.beside import COMPARED
from tests.engine.runs import (
    classes,
    make_whole_job,
    questions,
    summaries,
    tags,
    write_data,
    write_model,
)

pytestmark = pytest.mark.usefixtures("one_world")
LORA = {"lora_r": 4, "lora_alpha": 6.0}
ROWS: dict[str, Callable[[int, int], Any]] = {
    "text-classification": classes,
    "token-classification": tags,
    "question-answering": questions,
    "seq2seq-lm": summaries,
    "causal-lm": classes,
    "masked-lm": classes,
}
AUTO = {  # peft's class for a folder of adapters; none for masked language models
    "text-classification": "AutoPeftModelForSequenceClassification",
    "token-classification": "AutoPeftModelForTokenClassification",
    "question-answering": "AutoPeftModelForQuestionAnswering",
    "seq2seq-lm": "AutoPeftModelForSeq2SeqLM",
    "causal-lm": "AutoPeftModelForCausalLM",
}
HEADS = ("text-classification", "token-classification", "question-answering")


def job_of(
    folder: Path, task: str, kind: str, options: dict[str, Any] | None = None, **training: Any
) -> Job:
    rows = ROWS[task]
    data = write_data(folder / "data", {"train": rows(60, 1), "validation": rows(10, 2)})
    model = write_model(folder / "model", kind, task, head=task not in HEADS)
    changed = {**LORA, **(options or {})}
    return make_whole_job(folder / "runs/one", task, data, model, changed, **training)


def loss_of(task: Task, model: Any, samples: list[Sample]) -> torch.Tensor:
    batch = task.collate([task.draw(sample, n, None) for n, sample in enumerate(samples)])
    torch.manual_seed(5)  # of dropout
    return task.loss(call_model(model, batch.inputs), batch.targets)


@pytest.mark.parametrize(
    ("name", "kind", "options"),
    [
        ("text-classification", "bert", {}),
        ("text-classification", "gpt2", {"use_dora": True}),
        ("token-classification", "bert", {"use_rslora": True}),
        ("question-answering", "distilbert", {"use_dora": True, "use_rslora": True}),
        ("seq2seq-lm", "t5", {"lora_target_modules": ("all-linear",)}),
        ("seq2seq-lm", "bart", {"use_dora": True, "lora_dropout": 0.3}),
        ("causal-lm", "gpt2", {"lora_target_modules": ("c_attn", "c_proj")}),
        ("causal-lm", "llama", {"use_dora": True}),
        ("masked-lm", "bert", {"lora_dropout": 0.3}),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else value,
)
def test_loss_gradients_and_merged_weights_are_those_of_peft(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, kind: str, options: dict[str, Any]
) -> None:
    job = job_of(tmp_path, name, kind, options)
    write_inputs(job.run_dir, prepare(job))
    task, model, samples = rank.load(job, read_inputs(job.run_dir))
    task.check_model(model)
    assert job.recipe.adapters
    add_adapters(model, job.recipe.adapters)
    lengths = [p.detach().clone() for n, p in model.named_parameters() if "magnitude" in n]
    for layer, parameter in model.named_parameters():
        if layer.endswith("lora_B"):
            torch.nn.init.normal_(parameter, std=0.1)
        if layer.endswith("lora_magnitude_vector"):
            parameter.data *= 1 + 0.3 * torch.rand(parameter.shape)
    folder = tmp_path / "adapters"
    folder.mkdir()
    save_adapters(model, job.recipe, folder)

    monkeypatch.syspath_prepend(COMPARED)
    import peft

    settings = {"num_labels": model.config.num_labels} if name in HEADS else {}
    base = task.model_class.from_pretrained(job.recipe.model, **settings)
    if name in AUTO:  # the folder names the base model
        other = getattr(peft, AUTO[name]).from_pretrained(folder, is_trainable=True, **settings)
    else:
        other = peft.PeftModel.from_pretrained(copy.deepcopy(base), folder, is_trainable=True)
    fresh = peft.get_peft_model(copy.deepcopy(base), peft.LoraConfig.from_pretrained(folder))
    theirs = [p for n, p in fresh.named_parameters() if "magnitude" in n]
    for mine, expected in zip(lengths, theirs, strict=True):
        torch.testing.assert_close(mine, expected.detach(), rtol=1e-6, atol=1e-6)
    few = [samples["validation"][number] for number in range(6)]
    model.train()
    other.train()
    with KernelMode(context=context_of(model)):
        loss = loss_of(task, model, few)
        loss.backward()
    expected_loss = loss_of(task, other, few)
    expected_loss.backward()
    assert loss.item() == pytest.approx(expected_loss.item(), rel=1e-5)
    wanted = {
        name.replace(".default", "").replace(".modules_to_save", ""): parameter.grad
        for name, parameter in other.named_parameters()
        if parameter.requires_grad
    }
    found = {
        f"base_model.model.{name}" + ".weight" * ("lora_" in name): parameter.grad
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    }
    assert wanted.keys() == found.keys()
    for weight, grad in found.items():
        torch.testing.assert_close(grad, wanted[weight], rtol=1e-3, atol=1e-6, msg=weight)

    merge_adapters(model)
    merged = other.merge_and_unload().state_dict()
    assert merged.keys() == model.state_dict().keys()
    for weight, values in model.state_dict().items():
        torch.testing.assert_close(values, merged[weight], rtol=1e-6, atol=1e-6, msg=weight)
