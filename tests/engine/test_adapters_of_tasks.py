"""Adapters of each task, of GPT-2's layers, and of rsLoRA and DoRA are those of peft."""

import copy
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

from ftcluster_common.models.trained_model import read_trained
from ftcluster_common.protocol.job import EVALUATE, PREDICT, Job
from ftcluster_train.engine import rank
from ftcluster_train.engine.adapters import add_adapters, merge_adapters, save_adapters
from ftcluster_train.engine.data.run_inputs import read_inputs, write_inputs
from ftcluster_train.engine.data.token_samples import Sample
from ftcluster_train.engine.models import call_model
from ftcluster_train.engine.prepare import prepare
from ftcluster_train.engine.tasks.base import Task
from ftcluster_train.errors import TrainError
from ftcluster_train.patching.batch_context import context_of
from ftcluster_train.patching.kernel_mode import KernelMode
from tests.engine.beside import COMPARED
from tests.engine.jobs import result_of, run_rank
from tests.engine.models import make_model
from tests.engine.peft_names import by_name, by_name_of_peft
from tests.engine.runs import (
    classes,
    make_whole_job,
    questions,
    sets_of_classes,
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
    theirs, ours = by_name_of_peft(other), by_name(model)
    assert theirs.keys() == ours.keys()
    for weight, parameter in ours.items():
        torch.testing.assert_close(
            parameter.grad, theirs[weight].grad, rtol=1e-3, atol=1e-6, msg=weight
        )

    merge_adapters(model)
    merged = other.merge_and_unload().state_dict()
    assert merged.keys() == model.state_dict().keys()
    for weight, values in model.state_dict().items():
        torch.testing.assert_close(values, merged[weight], rtol=1e-6, atol=1e-6, msg=weight)


@pytest.mark.parametrize(
    ("name", "kind", "options", "precision"),
    [
        ("text-classification", "bert", {}, "fp32"),
        ("text-classification", "gpt2", {"use_dora": True}, "bf16"),
        ("token-classification", "bert", {"use_rslora": True}, "fp32"),
        ("question-answering", "bert", {}, "bf16"),
        ("seq2seq-lm", "t5", {"max_new_tokens": 3}, "fp32"),
        ("causal-lm", "gpt2", {}, "bf16"),
        ("masked-lm", "bert", {"use_dora": True, "lora_dropout": 0.1}, "fp32"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else value,
)
def test_trained_adapters_are_evaluated_with_their_base(
    tmp_path: Path, name: str, kind: str, options: dict[str, Any], precision: str
) -> None:
    """A classifier has the classes of its training, not those of its base model."""
    job = job_of(
        tmp_path, name, kind, options, batch_size=30, max_steps=20, learning_rate=2e-2,
        eval_strategy="steps", eval_steps=20, eval_on_start=True, precision=precision,
    )  # fmt: skip
    events = run_rank(job)
    first, found = (event["metrics"] for event in events if event["event"] == "evaluation")
    assert found["loss" if "loss" in found else "f1"] != first["loss" if "loss" in found else "f1"]
    assert [event for event in events if event["event"] == "reloaded"]
    folder = events[-1]["model"]
    assert not (Path(folder) / "config.json").exists()
    options = replace(job.recipe.options, lora_r=None)
    recipe = replace(job.recipe, model=folder, options=options)
    again = replace(job, run_dir=tmp_path / "runs/two", recipe=recipe, purpose=EVALUATE)
    # the training adds the adapter's output in bf16; an evaluation merges the adapter in fp32
    near = {"abs": 1e-5} if precision == "fp32" else {"rel": 2e-3}
    assert result_of(again)["metrics"] == pytest.approx(found, **near)


def test_a_classifier_of_its_card_agrees_with_predict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The base model has two classes; rows have any of three, with a threshold each."""
    rows = {"train": sets_of_classes(90, 1), "validation": sets_of_classes(40, 2)}
    data = write_data(tmp_path / "data", rows)
    model = write_model(tmp_path / "model", "bert", "text-ranking", head=True)
    job = make_whole_job(
        tmp_path / "runs/one", "text-classification", data, model, LORA, batch_size=30,
        max_steps=20, learning_rate=2e-2, eval_strategy="epoch",
    )  # fmt: skip
    trained = result_of(job)
    folder = trained["model"]
    head = read_trained(Path(folder))["head"]
    assert (head["classes"], head["problem_type"]) == (
        ["a", "b", "c"],
        "multi_label_classification",
    )
    assert set(head["label_thresholds"].values()) != {0.5}
    options = replace(job.recipe.options, lora_r=None, all_probabilities=True)
    recipe = replace(job.recipe, model=folder, options=options)
    again = replace(job, run_dir=tmp_path / "runs/two", recipe=recipe, purpose=EVALUATE)
    assert result_of(again)["metrics"] == pytest.approx(trained["metrics"], abs=1e-5)
    asked = write_data(tmp_path / "asked", {"test": rows["validation"][:5]})
    recipe = replace(recipe, data=asked)
    other = replace(job, run_dir=tmp_path / "runs/three", recipe=recipe, purpose=PREDICT)
    [file] = Path(result_of(other)["predictions"]).iterdir()
    answers = [json.loads(line) for line in file.read_text().splitlines()]

    monkeypatch.syspath_prepend(COMPARED)
    monkeypatch.chdir(tmp_path)  # the card names the base model without its path
    [code] = re.findall(r"```python\n(.*?)```", (Path(folder) / "README.md").read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    exec(code.replace("FOLDER", folder), names)
    assert names["model"].config.id2label == {0: "a", 1: "b", 2: "c"}
    texts = [row["text"] for row in rows["validation"][:5]]
    inputs = AutoTokenizer.from_pretrained(folder)(texts, padding=True, return_tensors="pt")
    with torch.inference_mode():
        found = names["model"].eval()(**inputs).logits.sigmoid()
    expected = torch.tensor([[*answer["probabilities"].values()] for answer in answers])
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("task", "kind", "target", "reason"),
    [
        ("causal-lm", "tied llama", "lm_head", "lm_head shares its weight with another layer"),
        ("causal-lm", "llama", "lm_head", "lm_head is the output layer"),
        ("causal-lm", "llama", "embed_tokens", "embed_tokens is of the type Embedding"),
        ("causal-lm", "gpt2", "q_proj", "the model has no layer q_proj; .*: c_attn, c_fc, c_proj"),
        ("text-classification", "bert", "classifier", "all weights of classifier are trained"),
        ("seq2seq-lm", "t5", "shared", "shared shares its weight with another layer"),
    ],
)
def test_layers_without_adapters_are_refused_before_the_ranks_start(
    tmp_path: Path, task: str, kind: str, target: str, reason: str
) -> None:
    job = job_of(tmp_path, task, kind.split()[-1], {"lora_target_modules": ("q", "query", target)})
    make_model(kind.split()[-1], task, tie_word_embeddings=kind.startswith("tied")).save_pretrained(
        job.recipe.model
    )
    with pytest.raises(TrainError) as caught:
        prepare(job)
    assert re.search(reason, f"{caught.value.message}; {caught.value.hint}")
