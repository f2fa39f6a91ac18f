"""In-batch negatives that a guide has checked, with sentence-transformers' loss."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

from ftcluster_common.models.sentence_modules import SentenceModules, read_modules
from ftcluster_common.tasks.embed import SentenceSimilarity
from ftcluster_train.engine.prepare import prepare
from ftcluster_train.engine.rank import load
from ftcluster_train.engine.tasks.embed.guided_negatives import GuidedSimilarityTask, gist_loss
from ftcluster_train.engine.tasks.embed.in_batch_negatives import BatchTexts
from tests.engine.jobs import make_job, run_rank
from tests.engine.models import make_tokenizer
from tests.engine.runs import Row, make_whole_job, triplets, write_data, write_model
from tests.engine.test_embedding_distillation import write_teacher

RECORDED = json.loads(Path(__file__).with_name("sentence_transformers.json").read_text())
TASK = "sentence-similarity"


def batch_of(columns: int, count: int) -> BatchTexts:
    kinds = torch.tensor([0, 1, 2][:columns]).repeat(count)
    nothing = torch.full((count,), torch.nan)
    return BatchTexts(torch.arange(len(kinds)), kinds, slice(0, 0), [len(kinds)], nothing)


def by_row(columns: list[torch.Tensor]) -> torch.Tensor:
    return functional.normalize(torch.stack(columns, dim=1).flatten(0, 1), dim=-1)


@pytest.mark.parametrize("number", range(len(RECORDED["gist"])))
def test_loss_and_gradients_are_those_of_sentence_transformers(tmp_path: Path, number: int) -> None:
    recorded = RECORDED["gist"][number]
    settings = {**recorded["settings"]}
    options = SentenceSimilarity(loss="gist", scale=1 / settings.pop("temperature"), **settings)
    recipe = replace(make_job(tmp_path, TASK).recipe, options=options, teacher="guide")
    task = GuidedSimilarityTask(recipe, make_tokenizer())
    task.width = 7
    count = len(recorded["gradients"])
    columns = [torch.tensor(column, requires_grad=True) for column in RECORDED["columns"][:count]]
    texts = batch_of(count, len(columns[0]))
    guides = by_row([torch.tensor(guide) for guide in RECORDED["guides"][:count]])
    task._guides = {
        (text, kind == 0): guide
        for text, (kind, guide) in enumerate(zip(texts.kinds.tolist(), guides, strict=True))
    }
    parts = (slice(0, 2), slice(2, 2), slice(2, 6))  # of three ranks, one without a row
    losses = [task.batch_loss(by_row(columns), texts._replace(rows=rows)) for rows in parts]
    total = torch.stack(losses).sum() / len(columns[0])
    assert total.item() == pytest.approx(recorded["loss"], rel=1e-5)
    total.backward()
    for column, gradients in zip(columns, recorded["gradients"], strict=True):
        assert torch.allclose(column.grad, torch.tensor(gradients), rtol=1e-4, atol=1e-5)


def test_equal_texts_are_never_negatives() -> None:
    """A row that is there twice does not change the loss of the first, whatever the guide says."""
    torch.manual_seed(6)
    columns = [functional.normalize(torch.randn(3, 5), dim=-1) for _ in range(2)]
    guides = [torch.eye(5)[:3], torch.eye(5)[:3] * -1]  # no candidate but a row's own is worse
    texts = batch_of(2, 3)._replace(rows=slice(0, 1))
    alone = gist_loss(by_row(columns), by_row(guides), texts, 10.0, 0.0, False)
    assert alone.item() == 0  # all others are ignored
    guides = [guide[[0, 1, 2, 0]] for guide in (torch.eye(5), torch.eye(5))]
    numbers = torch.tensor([0, 1, 2, 3, 4, 5, 0, 1])
    twice = batch_of(2, 4)._replace(rows=slice(0, 1), numbers=numbers)
    vectors = by_row([column[[0, 1, 2, 0]] for column in columns])
    once = gist_loss(
        vectors[:6], by_row(guides)[:6], batch_of(2, 3)._replace(rows=slice(0, 1)), 10.0, 0.0,
        False,
    )  # fmt: skip
    assert once.item() > 0
    found = gist_loss(vectors, by_row(guides), twice, 10.0, -0.1, False)
    assert found.item() == pytest.approx(once.item(), rel=1e-6)


@pytest.mark.usefixtures("one_world")
@pytest.mark.parametrize("mined", [0, 2])
def test_a_model_is_trained_with_a_guide(tmp_path: Path, mined: int) -> None:
    """The guide has another tokenizer, another width, and prompts."""
    modules = SentenceModules("cls", True, {"query": "w9 ", "document": "w10 "})
    tokenizer = write_teacher(tmp_path / "teacher", "minilm", modules)
    rows = [{**row, "negatives": row["negatives"][:1]} for row in triplets(40, 1)]
    data = write_data(tmp_path / "data", {"train": rows, "validation": triplets(9, 2)})
    job = make_whole_job(
        tmp_path / "runs/one", TASK, data, write_model(tmp_path / "model", "bert", TASK),
        {"loss": "gist", "scale": 50.0, "hard_negatives": mined, "relative_margin": None},
        {"teacher": str(tmp_path / "teacher")}, batch_size=20, max_steps=6, learning_rate=5e-3,
        gradient_accumulation_steps=2, eval_strategy="epoch",
    )  # fmt: skip
    events = run_rank(job)
    losses = [event["loss"] for event in events if event["event"] == "step"]
    assert losses[-1] < losses[0]
    [last] = [event["metrics"] for event in events if event["event"] == "evaluation"][-1:]
    assert "ndcg_at_10" in last
    folder = Path(events[-1]["model"])
    assert read_modules(folder) == SentenceModules("mean", normalize=True)
    document = json.loads((folder / "ftcluster.json").read_text())
    assert document["options"]["loss"] == "ranking"

    task, model, samples = load(job, prepare(job))
    assert isinstance(task, GuidedSimilarityTask)
    assert task.reference_model is not None
    task.check_model(model)
    first = [samples["train"][number] for number in range(3)]
    with torch.inference_mode():
        predictions = task.predict(task.reference_model, first, False)
        found = check_guides(task, samples["train"], predictions)
        for row, of_row in zip(rows, found, strict=False):
            texts = [f"w9 {row['query']}", *(f"w10 {text}" for text in texts_behind(row))]
            tokens = tokenizer(texts, padding=True, return_tensors="pt")
            hidden = task.reference_model(tokens["input_ids"], tokens["attention_mask"])
            wanted = functional.normalize(hidden.last_hidden_state[:, 0], dim=-1)
            assert torch.allclose(of_row, wanted, atol=1e-5)


def texts_behind(row: Row) -> list[str]:
    return [row["positive"], *row["negatives"]]


def check_guides(task: Any, samples: Any, predictions: list[Any]) -> list[torch.Tensor]:
    """The guide's embeddings of each row's texts."""
    task.set_reference(samples, predictions)
    return [
        torch.stack([
            task._guides[text, place == 0] for place, text in enumerate(samples[number]["texts"])
        ])
        for number in range(len(predictions))
    ]  # fmt: skip
