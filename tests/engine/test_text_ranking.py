"""Training on pairs of query and text gives a cross-encoder with metrics and scores."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from ftcluster_common.protocol.job import EVALUATE, PREDICT, Job
from ftcluster_common.tasks.rerank import LIST_LOSSES
from ftcluster_train.engine.data.token_samples import Samples
from ftcluster_train.engine.prepare import prepare
from ftcluster_train.engine.tasks.registry import make_task
from ftcluster_train.engine.tasks.rerank.text_ranking import list_loss, margin_loss
from ftcluster_train.errors import TrainError
from tests.engine.jobs import result_of, write_samples
from tests.engine.models import make_tokenizer
from tests.engine.runs import WORDS, Row, make_whole_job, triplets, write_data, write_model

pytestmark = pytest.mark.usefixtures("one_world")
TASK = "text-ranking"


def test_a_trained_model_orders_texts(tmp_path: Path) -> None:
    data = write_data(tmp_path / "data", {"train": triplets(100, 1), "validation": triplets(10, 2)})
    model = write_model(tmp_path / "model", "bert", TASK)
    job = make_whole_job(
        tmp_path / "runs/one", TASK, data, model, batch_size=30, max_steps=30,
        eval_strategy="steps", eval_steps=30, learning_rate=5e-3,
    )  # fmt: skip
    found = result_of(job)
    metrics = found["metrics"]
    assert list(metrics) == ["ndcg_at_10", "mrr_at_10", "accuracy_at_1", "accuracy", "loss"]
    assert metrics["accuracy_at_1"] >= 0.9
    assert metrics["accuracy"] >= 0.9
    assert metrics["loss"] < 0.5

    changed = replace(job.recipe, model=found["model"])
    again = replace(job, run_dir=tmp_path / "runs/two", recipe=changed, purpose=EVALUATE)
    again.run_dir.mkdir()
    assert result_of(again)["metrics"] == pytest.approx(metrics, abs=1e-5)

    # the last text is longer than the recipe's 32 tokens and the model's 50
    texts = [f"{WORDS[3]} w40", f"{WORDS[70]} w40", " ".join(WORDS[30:90])]
    rows = [{"query": "w7 w8", "text": text} for text in texts]
    there = write_data(tmp_path / "new", {"test": rows})
    recipe = replace(changed, data=there)
    again = replace(again, run_dir=tmp_path / "runs/three", purpose=PREDICT, recipe=recipe)
    again.run_dir.mkdir()
    [file] = Path(result_of(again)["predictions"]).iterdir()
    scores = [json.loads(line)["prediction"] for line in file.read_text().splitlines()]
    pairs = [[row["query"], row["text"]] for row in rows]
    # calls the model as CrossEncoder of sentence-transformers does
    tokenizer = AutoTokenizer.from_pretrained(found["model"])
    tokens = tokenizer(pairs, padding=True, truncation=True, return_tensors="pt")
    assert tokens["input_ids"].shape == (3, 32)
    with torch.no_grad():
        loaded = AutoModelForSequenceClassification.from_pretrained(found["model"]).eval()
        logits = loaded(**tokens).logits
    assert logits.shape == (3, 1)  # for this shape, CrossEncoder applies the sigmoid
    assert scores == pytest.approx(logits[:, 0].sigmoid().tolist(), abs=1e-5)
    assert scores[0] > scores[1]


def job_of(folder: Path, rows: list[Row], **changes: Any) -> Job:
    model = write_model(folder / "model", "bert", TASK)
    return make_whole_job(
        folder / "runs/one", TASK, write_data(folder / "data", {"train": rows}), model, **changes
    )


def test_rows_of_a_query_stay_together(tmp_path: Path) -> None:
    rows = [{"query": f"w{i % 10 + 5}", "text": f"w{i + 5}", "label": i % 2} for i in range(60)]
    inputs = prepare(job_of(tmp_path, rows))
    assert inputs.notices == ["validation: 1 queries, 10 % of train"]
    train, validation = (Samples(Path(inputs.samples) / s) for s in ("train", "validation"))
    assert (len(train), len(validation)) == (54, 6)
    queries = [{sample["input_ids"][1] for sample in split} for split in (train, validation)]
    assert len(queries[1]) == 1
    assert not queries[0] & queries[1]
    assert {sample["label"][0] for sample in train} == {0.0, 1.0}


def test_what_is_measured(tmp_path: Path) -> None:
    task = make_task(job_of(tmp_path, []).recipe, make_tokenizer())
    samples = [
        {"input_ids": [5], "query": [query], "label": [label]}
        for query, label in ((0, 1), (0, 0), (0, 0), (1, 0), (1, 1), (2, 1), (3, 0))
    ]
    logits = [1.0, 2.0, -1.0, 0.5, 0.5, 3.0, -2.0]  # the second query's texts have equal scores
    found = task.score([(logit, 0.25) for logit in logits], write_samples(tmp_path / "s", samples))
    # means over both orders of the equal scores
    assert found["mrr_at_10"] == pytest.approx((0.5 + 0.75) / 2)
    assert found["accuracy_at_1"] == pytest.approx(0.25)
    assert found["accuracy"] == pytest.approx(5 / 7)
    assert found["loss"] == 0.25
    alone = write_samples(tmp_path / "alone", samples[5:])
    assert list(task.score([(3.0, 0.0), (-2.0, 0.0)], alone)) == ["accuracy", "loss"]


@pytest.mark.parametrize(
    ("name", "loss_of_lists"), [("listnet", list_loss), ("margin_mse", margin_loss)]
)
def test_lists_are_learned_as_by_sentence_transformers(
    name: str, loss_of_lists: Callable[..., torch.Tensor]
) -> None:
    """The recorded ListNetLoss and MarginMSELoss come from record_sentence_transformers.py."""
    file = Path(__file__).with_name("sentence_transformers.json")
    recorded = json.loads(file.read_text())[name]
    logits = torch.tensor(recorded["logits"], requires_grad=True)
    labels = torch.tensor([label for one in recorded["labels"] for label in one])
    counts = list(map(len, recorded["labels"]))
    loss = loss_of_lists(logits, labels, counts) / len(counts)
    assert loss.item() == pytest.approx(recorded["loss"], rel=1e-6)
    loss.backward()
    assert torch.allclose(logits.grad, torch.tensor(recorded["gradients"]), atol=1e-6)


@pytest.mark.parametrize(("loss", "limit"), [("listnet", 0.5), ("margin_mse", 20)])
def test_a_model_learns_the_scores_of_another_one(tmp_path: Path, loss: str, limit: float) -> None:
    """The margins are 8.5 and 10.5, so margin_mse is 91 before the training."""
    rows = [
        {"query": row["query"], "documents": [row["positive"], *row["negatives"]],
         "labels": [6.5, -2.0, -4]}
        for row in triplets(100, 1)
    ]  # fmt: skip
    data = write_data(tmp_path / "data", {"train": rows[:80], "validation": rows[80:]})
    model = write_model(tmp_path / "model", "bert", TASK)
    job = make_whole_job(
        tmp_path / "runs/one", TASK, data, model, batch_size=10, max_steps=30,
        eval_strategy="steps", eval_steps=30, learning_rate=5e-3, gradient_accumulation_steps=2,
    )  # fmt: skip
    options = replace(job.recipe.options, loss=loss)
    metrics = result_of(replace(job, recipe=replace(job.recipe, options=options)))["metrics"]
    assert metrics["accuracy_at_1"] >= 0.9
    assert metrics["loss"] < limit
    short = [{**rows[0], "labels": [1.0]}]
    with pytest.raises(TrainError, match="documents has 3 texts, and labels is "):
        prepare(job_of(tmp_path / "short", short))
    with pytest.raises(TrainError, match=r"labels is 6.5, not a number from 0 to 1"):
        prepare(job_of(tmp_path / "high", rows))


@pytest.mark.parametrize("loss", LIST_LOSSES)
def test_lists_of_one_text_are_refused(tmp_path: Path, loss: str) -> None:
    """The loss of such lists would be 0 whatever the model computes."""
    job = job_of(tmp_path, [{"query": f"w{n}", "text": "w6", "label": 1} for n in range(5)])
    options = replace(job.recipe.options, loss=loss)
    with pytest.raises(TrainError, match=f"each row of train has one text, but loss={loss}"):
        prepare(replace(job, recipe=replace(job.recipe, options=options)))


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"query": "w5", "text": "", "label": 1}, "train.jsonl:1: column text is empty"),
        ({"query": "w5", "text": "w6", "label": 3}, "label is 3, not a number from 0 to 1"),
        ({"query": "w5", "text": "w6"}, "train has neither a column label nor one of negatives"),
    ],
)
def test_rows_that_are_refused(tmp_path: Path, row: Row, said: str) -> None:
    with pytest.raises(TrainError) as caught:
        prepare(job_of(tmp_path, [row]))
    assert said in caught.value.message


def test_a_model_with_other_outputs(tmp_path: Path) -> None:
    job = replace(job_of(tmp_path, triplets(4, 1)), purpose=EVALUATE)
    with pytest.raises(TrainError) as caught:
        prepare(job)
    assert "has 2 outputs, but a reranker has one" in caught.value.message
