"""Losses and gradients equal recorded results of record_sentence_transformers.py."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

from ftcluster_common.models.sentence_modules import SentenceModules, module_files
from ftcluster_common.tasks.embed import SentenceSimilarity
from ftcluster_train.comm.traffic import Traffic
from ftcluster_train.engine.data.run_inputs import read_inputs, write_inputs
from ftcluster_train.engine.data.token_samples import Samples
from ftcluster_train.engine.prepare import prepare
from ftcluster_train.engine.rank import load
from ftcluster_train.engine.tasks.embed.in_batch_negatives import BatchTexts, gather_texts
from ftcluster_train.engine.tasks.embed.sentence_similarity import SentenceSimilarityTask
from ftcluster_train.errors import TrainError
from tests.engine.jobs import make_job, run_rank
from tests.engine.models import make_tokenizer
from tests.engine.runs import WORDS, Row, make_whole_job, write_data, write_model

RECORDED = json.loads(Path(__file__).with_name("sentence_transformers.json").read_text())
TASK = "sentence-similarity"


def batch(columns: list[torch.Tensor], rows: slice) -> tuple[torch.Tensor, BatchTexts]:
    """Return embeddings of rows, different for each number."""
    embeddings = torch.stack(columns, dim=1).flatten(0, 1)
    count = len(columns[0])
    kinds = torch.tensor([0, 1, 2][: len(columns)]).repeat(count)
    labels = torch.tensor(RECORDED["labels"], dtype=torch.float64)
    if len(columns) > 2:
        labels.fill_(torch.nan)
    texts = BatchTexts(torch.arange(len(kinds)), kinds, rows, [len(kinds)], labels)
    return functional.normalize(embeddings, dim=-1), texts


@pytest.mark.parametrize("name", RECORDED["losses"])
def test_loss_and_gradients_are_those_of_sentence_transformers(tmp_path: Path, name: str) -> None:
    wanted, (loss, *matryoshka) = RECORDED["losses"][name], name.split(", ")
    options = SentenceSimilarity(loss=loss)  # type: ignore[arg-type]
    if matryoshka:
        dims, weights = (7, 4, 2), (1.0, 0.5, 2.0)
        options = replace(options, matryoshka_dims=dims, matryoshka_weights=weights)
    recipe = replace(make_job(tmp_path, TASK).recipe, options=options)
    task = SentenceSimilarityTask(recipe, make_tokenizer())
    task.width = 7
    used = RECORDED["columns"][: len(wanted["gradients"])]
    columns = [torch.tensor(one, requires_grad=True) for one in used]
    parts = []
    for rows in (slice(0, 2), slice(2, 2), slice(2, 6)):  # three ranks, one of them without rows
        embeddings, texts = batch(columns, rows)
        parts.append(task.batch_loss(embeddings, texts))
    total = torch.stack(parts).sum() / len(columns[0])
    assert total.item() == pytest.approx(wanted["loss"], rel=1e-6)
    total.backward()
    for one, gradients in zip(columns, wanted["gradients"], strict=True):
        assert torch.allclose(one.grad, torch.tensor(gradients), rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize("recorded", RECORDED["embedder_margin_mse"])
@pytest.mark.parametrize("form", ["scores", "margins"])
def test_margins_of_a_teacher_are_learned_as_in_sentence_transformers(
    tmp_path: Path, recorded: dict[str, Any], form: str
) -> None:
    """The rows are read, sent to the loss and compared as in a step of three ranks."""
    count = len(recorded["columns"]) - 2
    names = ["query", "positive", *(f"negative_{n}" for n in range(count))]
    rows = []
    for number, label in enumerate(recorded["labels"]):
        values = label if isinstance(label, list) else [label]
        if form == "margins" and len(values) > count:
            values = [values[0] - value for value in values[1:]]
        row = {name: f"{WORDS[number]} {name}" for name in names}
        rows.append({**row, "label": values[0] if len(values) == 1 else values})
    data = write_data(tmp_path / "data", {"train": rows, "validation": rows})
    model = write_model(tmp_path / "model", "bert", TASK)
    options = {"loss": "margin_mse", "matryoshka_dims": tuple(recorded["dims"])}
    job = make_whole_job(tmp_path / "one", TASK, data, model, options)
    samples = list(Samples(Path(prepare(job).samples) / "train"))
    task = SentenceSimilarityTask(job.recipe, make_tokenizer())
    task.modules = task.modules_of(Path(model))
    task.width = 7
    assert task.compares_dots != bool(recorded["dims"])
    columns = [torch.tensor(column, requires_grad=True) for column in recorded["columns"]]
    vectors = torch.stack(columns, dim=1).flatten(0, 1)
    if not task.compares_dots:
        vectors = functional.normalize(vectors, dim=-1)
    whole = gather_texts(samples, Traffic())
    parts = [
        task.batch_loss(vectors, whole._replace(rows=rows))
        for rows in (slice(0, 2), slice(2, 2), slice(2, 6))
    ]
    total = torch.stack(parts).sum() / len(rows)
    assert total.item() == pytest.approx(recorded["loss"], rel=1e-5)
    total.backward()
    for column, gradients in zip(columns, recorded["gradients"], strict=True):
        assert torch.allclose(column.grad, torch.tensor(gradients), rtol=1e-4, atol=1e-5)


def scored(count: int, seed: int) -> list[Row]:
    """Return pairs of words; the score from 0 to 5 is their similarity."""
    draw = torch.Generator().manual_seed(seed)
    numbers = torch.randint(0, 40, (count, 2), generator=draw).tolist()
    return [
        {"sentence1": WORDS[a], "sentence2": WORDS[b], "score": 5 - abs(a - b) / 8}
        for a, b in numbers
    ]


def test_a_row_with_two_negatives_has_the_mean_of_their_losses(tmp_path: Path) -> None:
    """Rows may have different numbers of negatives, and a row without any has no loss."""
    recipe = make_job(tmp_path, TASK).recipe
    recipe = replace(recipe, options=SentenceSimilarity(loss="triplet", margin=0.4))
    task = SentenceSimilarityTask(recipe, make_tokenizer())
    task.width = 7
    torch.manual_seed(3)
    kinds = torch.tensor([0, 1, 2, 2, 0, 1, 0, 1, 2])
    vectors = functional.normalize(torch.randn(len(kinds), 7), dim=-1)
    texts = BatchTexts(torch.arange(9), kinds, slice(0, 3), [9], torch.full((3,), torch.nan))
    single = torch.nn.TripletMarginWithDistanceLoss(
        distance_function=lambda a, b: 1 - functional.cosine_similarity(a, b), margin=0.4
    )
    first = torch.stack([single(vectors[:1], vectors[1:2], vectors[n : n + 1]) for n in (2, 3)])
    last = single(vectors[6:7], vectors[7:8], vectors[8:])
    total = task.batch_loss(vectors, texts)
    assert total.item() == pytest.approx((first.mean() + last).item(), rel=1e-5)
    parts = [texts._replace(rows=rows) for rows in (slice(0, 1), slice(1, 3))]
    assert sum(task.batch_loss(vectors, part) for part in parts).item() == pytest.approx(  # type: ignore[union-attr]
        total.item(), rel=1e-6
    )


@pytest.mark.usefixtures("one_world")
def test_a_model_learns_scores(tmp_path: Path) -> None:
    data = write_data(tmp_path / "data", {"train": scored(300, 1), "validation": scored(40, 2)})
    model = write_model(tmp_path / "model", "bert", TASK)
    job = make_whole_job(
        tmp_path / "runs/one", TASK, data, model, batch_size=32, num_train_epochs=8.0,
        eval_strategy="epoch", eval_on_start=True, learning_rate=5e-3,
        gradient_accumulation_steps=2,
    )  # fmt: skip
    options = replace(job.recipe.options, matryoshka_dims=(8, 32))
    events = run_rank(replace(job, recipe=replace(job.recipe, options=options)))
    said = "column score has scores, so pairs are trained on them: loss=cosent"
    assert said in [event["message"] for event in events if event["event"] == "notice"]
    first, *_, last = (event["metrics"] for event in events if event["event"] == "evaluation")
    assert [*first] == ["spearman", "pearson", "spearman_dim_8", "pearson_dim_8"]
    assert last["spearman"] > 0.5 > 2 * first["spearman"]
    assert last["spearman_dim_8"] > 0.4
    parts = [one["label"] for one in next(e for e in events if e["event"] == "data")["samples"][0]]
    assert parts[0] == "text"
    assert parts[1].startswith("score ")


@pytest.mark.parametrize(
    ("row", "options", "said"),
    [
        (
            {"score": 4},
            {"loss": "cosine"},
            "column score is 4, but loss=cosine needs scores from -1",
        ),
        ({"score": "good"}, {"loss": "angle"}, "jsonl:1: column score is 'good', not a number"),
        (
            {},
            {"loss": "cosent"},
            "train has no column with a usual name for scores; found sentence1",
        ),
        ({"score": 0}, {"loss": "ranking"}, "or train on scores with loss=cosent"),
        (
            {"score": 3},
            {"loss": "contrastive"},
            "train.jsonl:1: column score is 3, but loss=contrastive",
        ),
        ({}, {"loss": "triplet"}, "train has no column with negatives, which loss=triplet needs"),
        ({"label": 2}, {"loss": "margin_mse"}, "train has no column with negatives, which loss=m"),
        ({"negative": "w7"}, {"loss": "margin_mse"}, "no column with a teacher's margins, which"),
        (
            {"negative": "w7", "label": [1, 2, 3]},
            {"loss": "margin_mse"},
            "train.jsonl:1: label is [1, 2, 3], not the margins of the negatives (1) or",
        ),
    ],
)
def test_scores_that_are_refused(tmp_path: Path, row: Row, options: Any, said: str) -> None:
    rows = [{"sentence1": "w5", "sentence2": "w6", **row}]
    data = write_data(tmp_path / "data", {"train": rows, "validation": rows})
    model = write_model(tmp_path / "model", "bert", TASK)
    job = make_whole_job(tmp_path / "one", TASK, data, model)
    changed = replace(job.recipe.options, **options)
    with pytest.raises(TrainError) as caught:
        prepare(replace(job, recipe=replace(job.recipe, options=changed)))
    assert said in caught.value.message


def test_a_prompt_that_is_not_pooled(tmp_path: Path) -> None:
    """Pool only the text behind the prompt, as with include_prompt=false."""
    rows = [{"query": "w20", "positive": "w21 w22", "negative": "w20"}] * 3
    data = write_data(tmp_path / "data", {"train": rows})
    model = write_model(tmp_path / "model", "bert", TASK)
    modules = SentenceModules("mean", True, {"query": "w5 w6 ", "document": ""}, None, False)
    for name, document in module_files(modules, 32, 24, {}).items():
        (Path(model) / name).parent.mkdir(exist_ok=True)
        (Path(model) / name).write_text(json.dumps(document))
    job = make_whole_job(tmp_path / "one", TASK, data, model)
    job.run_dir.mkdir(parents=True, exist_ok=True)
    inputs = prepare(job)
    write_inputs(job.run_dir, inputs)
    samples = Samples(Path(inputs.samples) / "train")
    assert samples[0]["skipped"] == [3, 0, 0]  # the count includes [CLS]
    # the texts are equal whatever precedes them
    assert samples[0]["texts"][0] == samples[0]["texts"][2]
    task, loaded, _ = load(job, read_inputs(job.run_dir))
    task.check_model(loaded)
    assert task.modules == modules  # type: ignore[attr-defined]
    [group], places = task.group_texts([samples[0]])  # type: ignore[attr-defined]
    masks = task.collate(group).targets["tokens"][places]
    assert masks.tolist() == [[0, 0, 0, 1, 1], [1, 1, 1, 1, 0], [1, 1, 1, 0, 0]]
    # the query's own text does not count as found, although the prompts differ
    found = Samples(Path(inputs.samples) / "validation")
    assert found.about["same"] == [2]
    assert [one["skipped"] for one in found] == [[3], [0], [0]]
