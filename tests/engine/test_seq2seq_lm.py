"""Training of an encoder-decoder on pairs of texts, compared with transformers."""

import json
from collections.abc import Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    DataCollatorForSeq2Seq,
    PreTrainedModel,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
)

from ftcluster_common.protocol.job import EVALUATE, PREDICT, Job
from ftcluster_train.comm.world import World
from ftcluster_train.engine.data.token_samples import Sample, Samples
from ftcluster_train.engine.evaluation import evaluate
from ftcluster_train.engine.models import call_model, load_config
from ftcluster_train.engine.prepare import prepare
from ftcluster_train.engine.tasks.base import Task
from ftcluster_train.engine.tasks.seq2seq.seq2seq_lm import Seq2SeqLmTask
from ftcluster_train.errors import TrainError
from ftcluster_train.patching.patch_model import Optimizations, kernels_in_use, patch_model
from tests.engine.jobs import make_job, make_samples, make_task_of, result_of, write_samples
from tests.engine.models import VOCABULARY, make_model, make_tokenizer
from tests.engine.runs import Row, make_whole_job, summaries, write_data, write_model

TASK = "seq2seq-lm"
GATED = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}  # as in T5 v1.1 and mT5


class Silent:
    """A log that discards everything."""

    def write(self, event: str, **fields: Any) -> None:
        """Discard the text."""


def pairs(count: int, seed: int) -> list[Sample]:
    """Return sources and targets of unequal lengths."""
    targets = make_samples(TASK, count, seed + 1)
    sources = zip(make_samples(TASK, count, seed), targets, strict=True)
    return [{**one, "labels": other["input_ids"][:12]} for one, other in sources]


def ours(
    task: Task, model: PreTrainedModel, samples: list[Sample]
) -> tuple[float, dict[str, torch.Tensor], list[str]]:
    """Return the loss of a batch, its gradients and the kernels used."""
    kernels = patch_model(model, task, True, Optimizations(), Silent())
    model.train()
    inputs, targets = task.collate(samples)
    with kernels:
        loss = task.loss(call_model(model, inputs), targets)
        loss = loss / sum(len(sample["labels"]) for sample in samples)
        used = kernels_in_use(loss, model)
        loss.backward()
    return loss.item(), gradients(model), used


def trainers(
    model: PreTrainedModel, samples: list[Sample], smoothing: float, folder: Path
) -> tuple[float, dict[str, torch.Tensor]]:
    """Return the same results, computed by Seq2SeqTrainer."""
    tokenizer = make_tokenizer()
    arguments = Seq2SeqTrainingArguments(
        str(folder), per_device_train_batch_size=len(samples), label_smoothing_factor=smoothing,
        use_cpu=True, report_to="none",
    )  # fmt: skip
    trainer = Seq2SeqTrainer(
        model, arguments, DataCollatorForSeq2Seq(tokenizer, model), train_dataset=samples
    )
    [batch] = trainer.get_train_dataloader()
    model.train()
    tokens = sum(len(sample["labels"]) for sample in samples)
    loss = trainer.training_step(model, batch, torch.tensor(tokens))
    return loss.item(), gradients(model)


def gradients(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize(("kind", "changes"), [("t5", {}), ("t5", GATED), ("bart", {})])
def test_loss_and_gradients_are_those_of_seq2seqtrainer(
    tmp_path: Path, kind: str, changes: Mapping[str, Any], smoothing: float
) -> None:
    samples = pairs(6, 3)
    task = make_task_of(make_job(tmp_path / "job", TASK, label_smoothing_factor=smoothing))
    loss, found, used = ours(task, make_model(kind, TASK, **changes), samples)
    stock_loss, expected = trainers(
        make_model(kind, TASK, **changes), samples, smoothing, tmp_path / "stock"
    )
    assert loss == pytest.approx(stock_loss, rel=1e-6)
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-6, msg=name)
    assert ("cross_entropy" in used) == (smoothing == 0)


@pytest.mark.parametrize("kind", ["t5", "bart"])
def test_an_evaluation_measures_the_loss_of_transformers(
    tmp_path: Path, world: World, kind: str
) -> None:
    """Evaluate in batches, with fused logits or not; BART's logits have a bias."""
    job = make_job(tmp_path / "job", TASK)
    options = replace(job.recipe.options, predict_with_generate=False)  # type: ignore[type-var]
    task = make_task_of(replace(job, recipe=replace(job.recipe, options=options)))
    model, samples = make_model(kind, TASK), pairs(9, 5)
    task.check_model(model)
    found = evaluate(
        task, model, {"validation": write_samples(tmp_path / "s", samples)}, world, False
    )
    assert found.texts == {}
    losses = []
    for sample in samples:
        inputs = {name: torch.tensor([sample[name]]) for name in ("input_ids", "labels")}
        losses.append(model(**inputs).loss.item() * len(sample["labels"]))
    tokens = sum(len(sample["labels"]) for sample in samples)
    assert found.metrics == {"loss": pytest.approx(sum(losses) / tokens, rel=1e-5)}


def job_of(folder: Path, kind: str, rows: list[Row], **changes: Any) -> Job:
    data = write_data(folder / "data", {"train": rows, "validation": summaries(12, 2)})
    return make_whole_job(
        folder / "runs/one", TASK, data, write_model(folder / "model", kind, TASK), **changes
    )


def untie(folder: str) -> None:
    """Return a model whose last layer is not its embedding, like published T5 v1.1 models."""
    model = make_model("t5", TASK, **GATED)
    layer = torch.nn.Linear(32, VOCABULARY, bias=False)
    model.lm_head.weight = torch.nn.Parameter(torch.randn_like(layer.weight) / 4)
    model.save_pretrained(folder)
    config = json.loads((Path(folder) / "config.json").read_text())
    config = {name: value for name, value in config.items() if name != "scale_decoder_outputs"}
    (Path(folder) / "config.json").write_text(json.dumps({**config, **GATED}))


@pytest.mark.usefixtures("one_world")
@pytest.mark.parametrize("kind", ["t5", "t5 v1.1", "bart"])
def test_a_trained_model_writes_what_stock_generate_writes(tmp_path: Path, kind: str) -> None:
    job = job_of(
        tmp_path, kind.split()[0], summaries(160, 1),
        options={"num_beams": 2, "source_prefix": "w4 w4 "},
        batch_size=32, max_steps=60, learning_rate=1e-2, eval_strategy="steps", eval_steps=60,
    )  # fmt: skip
    if kind == "t5 v1.1":
        untie(job.recipe.model)
    found = result_of(job)
    metrics = found["metrics"]
    assert list(metrics) == ["loss", "rouge1", "rouge2", "rougeL", "chrf", "bleu", "gen_len"]
    assert metrics["loss"] < 3.5  # chance among 97 words would be 4.6

    changed = replace(job.recipe, model=found["model"])
    again = replace(job, run_dir=tmp_path / "runs/two", recipe=changed, purpose=EVALUATE)
    measured = result_of(again)
    assert measured["metrics"] == pytest.approx(metrics, abs=1e-4)
    [shown] = measured["texts"].values()
    rows = summaries(12, 2)
    assert [one[1] for one in shown] == [row["summary"] for row in rows[:3]]

    there = write_data(tmp_path / "new", {"test": [{"document": row["document"]} for row in rows]})
    recipe = replace(changed, data=there)
    again = replace(again, run_dir=tmp_path / "runs/three", purpose=PREDICT, recipe=recipe)
    [file] = Path(result_of(again)["predictions"]).iterdir()
    written = [json.loads(line)["prediction"] for line in file.read_text().splitlines()]
    tokenizer = AutoTokenizer.from_pretrained(found["model"])
    texts = [f"w4 w4 {row['document']}" for row in rows]
    tokens = tokenizer(texts, truncation=True, max_length=32, padding=True, return_tensors="pt")
    tokens.pop("token_type_ids", None)
    stock = AutoModelForSeq2SeqLM.from_pretrained(found["model"]).eval()
    expected = stock.generate(**tokens, num_beams=2, max_new_tokens=12, do_sample=False)
    assert written == tokenizer.batch_decode(expected, skip_special_tokens=True)
    assert len(set(written)) > 2
    assert [one[2] for one in shown] == written[:3]


def test_what_is_cut_is_said(tmp_path: Path) -> None:
    rows = [{"document": "w5 " * (20 + n), "summary": "w6 " * (5 + n)} for n in range(20)]
    inputs = prepare(job_of(tmp_path, "t5", rows))
    assert inputs.notices[:2] == [
        "train: 9 sources were truncated to 32 tokens, see max_source_length; 50 % have at most "
        "31, 95 % have at most 40, 99 % have at most 41, the longest 41",
        "train: 14 targets were truncated to 12 tokens, see max_target_length; 50 % have at most "
        "16, 95 % have at most 25, 99 % have at most 26, the longest 26",
    ]
    samples = Samples(Path(inputs.samples) / "train")
    assert max(samples.lengths("labels")) == 12
    # a truncated target has the same end
    assert {sample["labels"][-1] for sample in samples} == {3}
    [train, _] = inputs.report["sets"]
    assert (train["cut"], train["limit"], train["rows"]) == (23, 44, 20)
    [document] = inputs.report["samples"][0]
    assert [learned for _, learned in document["parts"]] == [False, True]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"document": "w5", "summary": " "}, "train.jsonl:1: column summary is empty"),
        (
            {"translation": {"en": "w5", "de": "w6"}},
            "name the columns: source_lang=en target_lang=de",
        ),
    ],
)
def test_rows_that_are_refused(tmp_path: Path, row: Row, said: str) -> None:
    with pytest.raises(TrainError) as caught:
        prepare(job_of(tmp_path, "t5", [row]))
    assert said in caught.value.message


def test_models_that_are_refused(tmp_path: Path) -> None:
    task = make_task_of(make_job(tmp_path, TASK))
    with pytest.raises(TrainError, match="a gpt2 model, which does not define the decoder's input"):
        task.check_model(make_model("gpt2", "causal-lm"))
    with pytest.raises(TrainError, match="does not define the first token of its decoder"):
        task.check_model(make_model("t5", TASK, decoder_start_token_id=None))


@pytest.mark.parametrize(("kind", "begins"), [("t5", "pad_token_id"), ("bart", "eos_token_id")])
def test_a_decoder_from_random_weights_begins_as_its_kind_does(
    tmp_path: Path, kind: str, begins: str
) -> None:
    """Use this tokenizer's start token instead of transformers' default id."""
    job, tokenizer = make_job(tmp_path, TASK), make_tokenizer()
    recipe = replace(job.recipe, model=f"config:{kind}", from_scratch=True)
    assert load_config(recipe, recipe.model, tokenizer).decoder_start_token_id == getattr(
        tokenizer, begins
    )
    said = replace(recipe, config_overrides={"decoder_start_token_id": 7})
    assert load_config(said, recipe.model, tokenizer).decoder_start_token_id == 7


def test_a_tokenizer_of_many_languages(tmp_path: Path) -> None:
    """Texts of mBART and NLLB begin or end with a language token."""
    recipe, tokenizer = make_job(tmp_path, TASK).recipe, make_tokenizer()
    tokenizer.src_lang = "w7"
    named = replace(recipe.options, source_lang="w5", target_lang="w6")  # type: ignore[type-var]
    with pytest.raises(TrainError, match=r"these languages: \(none\), \(none\)"):
        Seq2SeqLmTask(recipe, tokenizer)
    model = make_model("bart", TASK)
    Seq2SeqLmTask(replace(recipe, options=named), tokenizer).check_model(model)
    assert (tokenizer.src_lang, tokenizer.tgt_lang) == ("w5", "w6")
    assert model.generation_config.forced_bos_token_id == 6


def test_lengths_count_both_texts(tmp_path: Path) -> None:
    task, samples = make_task_of(make_job(tmp_path, TASK)), pairs(5, 1)
    stored = write_samples(tmp_path / "s", samples)
    both = [len([*chain(sample["input_ids"], sample["labels"])]) for sample in samples]
    assert [*task.lengths(stored)] == both
    assert [*task.weights(stored)] == [len(sample["labels"]) for sample in samples]
