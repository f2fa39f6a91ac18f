"""Checkpoints and evaluations during a training, and the remaining files when it fails."""

import math
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedModel,
    Trainer,
    TrainingArguments,
)

from ftcluster_common.models.trained_model import read_trained
from ftcluster_common.protocol.job import Job
from ftcluster_train.comm.world import World
from ftcluster_train.engine.data.sampler import BatchSampler
from ftcluster_train.engine.data.token_samples import Sample
from ftcluster_train.engine.tasks.classify.text_classification import TextClassificationTask
from ftcluster_train.errors import TrainError
from tests.engine.jobs import Run, make_job, make_samples, make_task_of, read_events, run
from tests.engine.models import VOCABULARY, make_model

RARE = VOCABULARY - 1  # a token that only one sample has


def folders(path: Path) -> set[str]:
    return {folder.name for folder in path.glob("*")}


def check_equal(one: PreTrainedModel, other: PreTrainedModel) -> None:
    for (name, a), b in zip(one.state_dict().items(), other.state_dict().values(), strict=True):
        assert torch.allclose(a, b, rtol=0, atol=0, equal_nan=True), name


def bad_at(step: int, samples: list[Sample], job: Job) -> list[int]:
    """Add the rare token to one sample of the batch of `step`; return this batch."""
    lengths = [len(sample["input_ids"]) for sample in samples]
    for sample in samples:
        sample["input_ids"] = [min(token, RARE - 1) for token in sample["input_ids"]]
    batch = list(BatchSampler(lengths, job.recipe.batch_size, job.recipe.training))[step - 1]
    samples[batch[-1]]["input_ids"][0] = RARE
    return batch


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_loss_that_is_no_number(tmp_path: Path, world: World, precision: str) -> None:
    samples = make_samples("text-classification", 60)
    model, previous = make_model("bert"), make_model("bert")
    for made in (model, previous):
        with torch.no_grad():
            made.get_input_embeddings().weight[RARE] = math.nan
    changes = {"batch_size": 12, "lr_scheduler_type": "constant"}
    job = make_job(tmp_path / "bad", "text-classification", precision, **changes)
    batch = bad_at(3, samples, job)
    with pytest.raises(TrainError) as caught:
        run(job, model, samples, world)
    kept = tmp_path / "bad/checkpoints/checkpoint-2"
    shown = ", ".join(map(str, batch[:8]))
    assert caught.value.message == (
        "the loss is nan at step 3 on rank 0; rank 0's part of the batch: "
        f"samples {shown} ... of train (the first is 0); "
        f"the model before this step is in {kept} on the head"
    )
    assert "training.learning_rate" in caught.value.hint
    before = run(
        make_job(tmp_path / "good", "text-classification", precision, **changes, max_steps=2),
        previous, samples, world,
    )  # fmt: skip
    loaded = AutoModelForSequenceClassification.from_pretrained(kept)
    assert {p.dtype for p in loaded.parameters()} == {torch.float32}
    check_equal(loaded, before.model)
    assert len(AutoTokenizer.from_pretrained(kept)) == VOCABULARY
    assert [event["step"] for event in read_events(job) if event["event"] == "step"] == [1, 2]


def test_a_first_step_that_fails_leaves_no_model(tmp_path: Path, world: World) -> None:
    samples = make_samples("text-classification", 5)
    model = make_model("bert")
    with torch.no_grad():
        model.classifier.bias[0] = math.nan
    with pytest.raises(TrainError, match="the loss is nan at step 1 on rank 0") as caught:
        run(make_job(tmp_path, "text-classification"), model, samples, world)
    assert "the model before" not in caught.value.message
    assert not (tmp_path / "checkpoints").exists()


class Steep(TextClassificationTask):
    """A model with a finite loss and an infinite gradient."""

    def loss(self, outputs: Any, targets: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return super().loss(outputs, targets) + torch.sqrt(outputs.logits.float().sum() * 0)


def test_gradients_that_are_no_numbers(tmp_path: Path, world: World) -> None:
    job = make_job(tmp_path, "text-classification")
    task = Steep(job.recipe, make_task_of(job).tokenizer)
    samples = make_samples("text-classification", 8)
    with pytest.raises(
        TrainError, match="not finite at step 1, but the loss is finite on every rank"
    ):
        run(job, make_model("bert"), samples, world, task=task)


STEPS = 7
EPOCH = 3  # steps per epoch
# evaluation losses of a language model with 8 texts at this rate: they fall, then rise
RATE = 0.02
CADENCES: dict[str, dict[str, Any]] = {
    "the last two": {"save_strategy": "steps", "save_steps": 2, "save_total_limit": 2},
    "a share": {"save_strategy": "steps", "save_steps": 0.3},
    "epochs": {"save_strategy": "epoch", "save_total_limit": 2},
    "the best": {"save_strategy": "best", "eval_strategy": "steps", "eval_steps": 1,
                 "load_best_model_at_end": True, "metric_for_best_model": "loss"},
    "the best of steps": {"save_strategy": "steps", "save_steps": 1, "eval_strategy": "steps",
                          "eval_steps": 1, "load_best_model_at_end": True, "save_total_limit": 2},
    "the best and the last": {"save_strategy": "steps", "save_steps": 1, "eval_steps": 1,
                              "eval_strategy": "steps", "load_best_model_at_end": True,
                              "save_total_limit": 1},
    "the worst": {"save_strategy": "steps", "save_steps": 1, "eval_strategy": "steps",
                  "eval_steps": 1, "load_best_model_at_end": True, "save_total_limit": 1,
                  "metric_for_best_model": "eval_loss", "greater_is_better": True},
}  # fmt: skip
FEW_CADENCES = ("the last two", "the best and the last")
COMMON = {
    "learning_rate": RATE, "lr_scheduler_type": "constant", "max_steps": STEPS, "logging_steps": 1,
    "save_total_limit": None,
}  # fmt: skip


def texts() -> tuple[list[Sample], list[Sample]]:
    """Return training texts that are all equal, so that their order does not matter."""
    (text,) = make_samples("causal-lm", 1, seed=1)
    return [text] * (8 * EPOCH), [*make_samples("causal-lm", 3, seed=2), text]


def with_labels(samples: Sequence[Sample]) -> list[Sample]:
    """Return samples with labels, whose number Trainer divides the loss by, except the first."""
    return [{**s, "labels": [-100, *s["input_ids"][1:]]} for s in samples]


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param(settings, id=name, marks=[] if name in FEW_CADENCES else [pytest.mark.long])
        for name, settings in CADENCES.items()
    ],
)
def test_checkpoints_are_those_of_transformers(
    tmp_path: Path, world: World, settings: dict[str, Any]
) -> None:
    train_set, validation = texts()
    ours = run(
        make_job(tmp_path / "ours", "causal-lm", **{**COMMON, **settings}),
        make_model("gpt2", "causal-lm"), train_set, world, validation,
    )  # fmt: skip
    trainer = Trainer(
        make_model("gpt2", "causal-lm"),
        TrainingArguments(
            tmp_path / "theirs", per_device_train_batch_size=8, per_device_eval_batch_size=4,
            use_cpu=True, report_to="none", disable_tqdm=True, **{**COMMON, **settings},
        ),
        train_dataset=with_labels(train_set),
        eval_dataset=with_labels(validation),
    )  # fmt: skip
    trainer.train()
    assert folders(tmp_path / "ours/checkpoints") == folders(tmp_path / "theirs")
    told = [event["step"] for event in ours.of("evaluation")]
    history = [entry for entry in trainer.state.log_history if "eval_loss" in entry]
    assert told == [entry["step"] for entry in history]
    found = [event["metrics"]["loss"] for event in ours.of("evaluation")]
    assert found == pytest.approx([entry["eval_loss"] for entry in history], rel=1e-3)
    if settings.get("load_best_model_at_end"):
        best = trainer.state.best_global_step
        assert ours.result.metrics["loss"] == found[told.index(best)]
        if not settings.get("greater_is_better"):
            assert best != told[-1]  # otherwise the test would not show which checkpoint is chosen
        kept = AutoModelForCausalLM.from_pretrained(
            tmp_path / f"ours/checkpoints/checkpoint-{best}"
        )
        check_equal(kept, ours.model)
    weights = dict(trainer.model.named_parameters())
    for name, parameter in ours.model.named_parameters():
        assert torch.allclose(parameter, weights[name], atol=1e-2), name


def plain(folder: Path, world: World, **changes: Any) -> Run:
    train_set, validation = texts()
    job = make_job(folder, "causal-lm", **{**COMMON, **changes})
    return run(job, make_model("gpt2", "causal-lm"), train_set, world, validation)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_evaluating_and_saving_do_not_change_what_is_learned(
    tmp_path: Path, world: World, precision: str
) -> None:
    left = plain(tmp_path / "alone", world, precision=precision)
    every = {"save_strategy": "steps", "save_steps": 1, "eval_strategy": "steps", "eval_steps": 1}
    disturbed = plain(
        tmp_path / "disturbed", world, precision=precision, eval_on_start=True, **every
    )
    assert disturbed.losses == left.losses
    assert disturbed.digests[-1] == left.digests[-1]
    assert [event["step"] for event in disturbed.of("evaluation")] == list(range(STEPS + 1))
    last = tmp_path / f"disturbed/checkpoints/checkpoint-{STEPS}"
    check_equal(AutoModelForCausalLM.from_pretrained(last), left.model)


def test_a_model_that_was_best_before_it_learned(tmp_path: Path, world: World) -> None:
    """No checkpoint belongs to the evaluation at the start, as in transformers."""
    done = plain(
        tmp_path, world, learning_rate=5.0, eval_on_start=True, load_best_model_at_end=True,
        save_strategy="steps", save_steps=1, eval_strategy="steps", eval_steps=1,
    )  # fmt: skip
    losses = [event["metrics"]["loss"] for event in done.of("evaluation")]
    assert losses[0] == min(losses)
    assert done.result.metrics["loss"] == min(losses[1:])


def test_nothing_is_left_half_saved(
    tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    removed: list[str] = []
    rmtree = shutil.rmtree

    def remember(path: Path, *arguments: Any, **options: Any) -> None:
        if Path(path).exists():
            removed.append(Path(path).name)
        rmtree(path, *arguments, **options)

    monkeypatch.setattr(shutil, "rmtree", remember)
    plain(tmp_path, world, save_strategy="steps", save_steps=3, save_total_limit=1)
    assert folders(tmp_path / "checkpoints") == {f"checkpoint-{STEPS}"}
    found = folders(tmp_path / f"checkpoints/checkpoint-{STEPS}")
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= found
    trained = read_trained(tmp_path / f"checkpoints/checkpoint-{STEPS}")
    assert trained["task"] == "causal-lm"
    # a name that does not look like a checkpoint
    assert removed == [".checkpoint-3.removed", ".checkpoint-6.removed"]
