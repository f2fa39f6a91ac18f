"""The loop learns the same as a plain loop of torch and transformers, and is reproducible."""

import copy
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel, get_linear_schedule_with_warmup
from transformers.trainer_pt_utils import LabelSmoother

from ftcluster_common.protocol.job import Job
from ftcluster_train.comm.world import World
from ftcluster_train.engine.data.sampler import BatchSampler
from ftcluster_train.engine.data.token_samples import Sample
from tests.engine.jobs import make_job, make_samples, make_task_of, run
from tests.engine.models import make_model

COUNT = 60
STEPS = 10  # with batches of 8 the eighth is smaller, and the ninth belongs to the next epoch


def plain_loop(job: Job, model: PreTrainedModel, samples: Sequence[Sample]) -> list[float]:
    """Return the losses of a loop with transformers' loss, torch's AdamW and torch's clipping."""
    settings = job.recipe.training
    groups = [
        {"params": [p for p in model.parameters() if p.ndim > 1],
         "weight_decay": settings.weight_decay},
        {"params": [p for p in model.parameters() if p.ndim == 1], "weight_decay": 0.0},
    ]  # fmt: skip
    adamw = torch.optim.AdamW(
        groups, lr=settings.learning_rate, eps=settings.adam_epsilon, fused=True
    )
    schedule = get_linear_schedule_with_warmup(adamw, 2, STEPS)
    model.train()
    losses = []
    lengths = [len(sample["input_ids"]) for sample in samples]
    for batch in BatchSampler(lengths, job.recipe.batch_size, settings):
        loss = model(**transformers_inputs(job, [samples[i] for i in batch])).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), settings.max_grad_norm)
        adamw.step()
        schedule.step()
        adamw.zero_grad()
        losses.append(loss.item())
    return losses


def transformers_inputs(job: Job, samples: Sequence[Sample]) -> dict[str, torch.Tensor]:
    """Convert a batch to arguments of a transformers model that computes its loss."""
    longest = max(len(sample["input_ids"]) for sample in samples)
    rows = [s["input_ids"] + [0] * (longest - len(s["input_ids"])) for s in samples]
    masks = [[int(i < len(s["input_ids"])) for i in range(longest)] for s in samples]
    inputs = {"input_ids": torch.tensor(rows), "attention_mask": torch.tensor(masks)}
    if job.recipe.task == "causal-lm":
        return {"input_ids": inputs["input_ids"], "labels": inputs["input_ids"]}
    if job.recipe.task == "question-answering":
        places = {
            f"{n}_positions": torch.tensor([s[n][0] for s in samples]) for n in ("start", "end")
        }
        return {**inputs, **places}
    return {**inputs, "labels": torch.tensor([s["label"][0] for s in samples])}


@pytest.mark.parametrize(
    ("kind", "task"),
    [
        ("bert", "text-classification"),
        ("minilm", "text-classification"),
        ("roberta", "text-classification"),
        ("distilbert", "text-classification"),
        ("modernbert", "text-classification"),
        ("bert", "question-answering"),
        ("gpt2", "causal-lm"),
        ("llama", "causal-lm"),
    ],
)
def test_losses_are_those_of_a_plain_loop(
    tmp_path: Path, world: World, kind: str, task: str
) -> None:
    samples = make_samples(task, COUNT)
    job = make_job(
        tmp_path, task, max_steps=STEPS, warmup_steps=2, weight_decay=0.1, max_grad_norm=0.5,
        # the plain loop does not accumulate gradients
        adam_epsilon=1e-6, gradient_accumulation_steps=3,
    )  # fmt: skip
    model = make_model(kind, task)
    plain = copy.deepcopy(model)
    done = run(job, model, samples, world)
    wanted = plain_loop(job, plain, samples)
    assert done.losses == pytest.approx(wanted, rel=1e-4)
    # the losses agree although training has changed the model
    assert len(set(wanted)) == STEPS
    assert max(event["grad_norm"] for event in done.of("step")) > 0.5
    left = dict(plain.named_parameters())
    for name, parameter in done.model.named_parameters():
        assert parameter.dtype == torch.float32
        assert torch.allclose(parameter, left[name], atol=2e-4), name
    assert done.notices == []
    rates = [event["learning_rate"] for event in done.of("step")]
    assert rates[1] == max(rates) == pytest.approx(1e-3)
    assert rates[-1] == 0


TASKS = {
    "bert": "text-classification",
    "modernbert": "text-classification",
    "gpt2": "causal-lm",
    "llama": "causal-lm",
}


@pytest.mark.parametrize("kind", TASKS)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_same_seed_gives_the_same_bits(
    tmp_path: Path, world: World, kind: str, precision: str
) -> None:
    task = TASKS[kind]
    samples = make_samples(task, 40)
    made = []
    for number, seed in enumerate((3, 3, 4)):
        # the data order stays the same, so only dropout differs
        changes = {"max_steps": 4, "seed": seed, "data_seed": 0, "gradient_accumulation_steps": 2}
        job = make_job(tmp_path / str(number), task, precision, **changes)
        made.append(run(job, make_model(kind, task, dropout=0.1), samples, world))
    assert made[0].losses == made[1].losses
    assert made[0].digests == made[1].digests
    assert len(set(made[0].digests)) == 2  # after the first and after the last step
    assert made[2].losses != made[0].losses
    assert not set(made[2].digests) & set(made[0].digests)


@pytest.mark.parametrize("kind", ["modernbert", "gpt2"])
def test_bf16_learns_about_what_fp32_learns(tmp_path: Path, world: World, kind: str) -> None:
    task = TASKS[kind]
    samples = make_samples(task, 40)
    losses = {
        precision: run(
            make_job(tmp_path / precision, task, precision, max_steps=12),
            make_model(kind, task), samples, world,
        ).losses
        for precision in ("fp32", "bf16")
    }  # fmt: skip
    assert losses["bf16"] == pytest.approx(losses["fp32"], rel=0.05)
    assert losses["bf16"] != losses["fp32"]


@pytest.mark.parametrize(("kind", "precision"), [("bert", "fp32"), ("gpt2", "bf16")])
def test_gradient_checkpointing_changes_nothing(
    tmp_path: Path, world: World, kind: str, precision: str
) -> None:
    """Checkpointing draws the same dropout masks again."""
    task = TASKS[kind]
    samples = make_samples(task, 40)
    made = [
        run(
            make_job(tmp_path / str(again), task, precision, max_steps=4,
                     gradient_checkpointing=again),
            make_model(kind, task, dropout=0.2), samples, world,
        )
        for again in (False, True)
    ]  # fmt: skip
    assert made[0].losses == made[1].losses
    assert made[0].digests == made[1].digests


def test_a_model_with_its_own_attention(tmp_path: Path, world: World) -> None:
    samples = make_samples("text-classification", COUNT)
    changes = {"max_steps": STEPS, "warmup_steps": 2}
    model = make_model("bert")
    job = make_job(tmp_path, "text-classification", **changes, adam_epsilon=1e-6)
    plain = copy.deepcopy(model)
    model.set_attn_implementation("eager")
    done = run(job, model, samples, world)
    assert done.losses == pytest.approx(plain_loop(job, plain, samples), rel=1e-4)
    (notice,) = done.notices
    assert notice.startswith("BertSelfAttention uses torch's attention: attn_implementation=eager")


@pytest.mark.parametrize(
    ("kind", "task", "cut"), [("bert", "text-classification", 0), ("gpt2", "causal-lm", 1)]
)
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
def test_label_smoothing_is_that_of_transformers(
    tmp_path: Path, kind: str, task: str, cut: int, smoothing: float
) -> None:
    job = make_job(tmp_path, task, label_smoothing_factor=smoothing)
    samples = make_samples(task, 5)
    model = make_model(kind, task).eval()
    ours = make_task_of(job)
    inputs, targets = ours.collate(samples)
    outputs = model(**inputs)
    loss = ours.loss(outputs, targets) / len(samples)
    labels = transformers_inputs(job, samples)["labels"]
    smoother = LabelSmoother(epsilon=smoothing)
    wanted = smoother({"logits": outputs.logits}, labels, shift_labels=bool(cut))
    assert loss.item() == pytest.approx(wanted.item(), rel=1e-6)


def test_smoothing_under_the_loop(tmp_path: Path, world: World) -> None:
    """The fused loss of a large vocabulary has no label smoothing and must not be used."""
    samples = make_samples("causal-lm", 8)
    model = make_model("gpt2", "causal-lm")
    tokens = torch.tensor([sample["input_ids"] for sample in samples])
    smoother = LabelSmoother(epsilon=0.3)
    wanted = smoother({"logits": model(input_ids=tokens).logits}, tokens, shift_labels=True)
    job = make_job(tmp_path, "causal-lm", max_steps=1, label_smoothing_factor=0.3)
    assert run(job, model, samples, world).losses == pytest.approx([wanted.item()], rel=1e-5)


def test_attention_dropout_that_a_recipe_leaves_out(tmp_path: Path, world: World) -> None:
    samples = make_samples("text-classification", 16)

    def losses(name: str, attention: bool, **dropout: Any) -> list[float]:
        job = make_job(tmp_path / name, "text-classification", max_steps=2)
        job = replace(job, recipe=replace(job.recipe, attention_dropout=attention))
        return run(job, make_model("bert", **dropout), samples, world).losses

    only = {"attention_probs_dropout_prob": 0.5}
    assert losses("off", False, **only) == losses("none", True)
    assert losses("on", True, **only) != losses("again", True)
