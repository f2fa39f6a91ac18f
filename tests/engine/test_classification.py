"""Classification against torch and transformers: class weights, and several classes per row."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    TextClassificationPipeline,
)

from ftcluster_common.models.row_hashes import read_rows
from ftcluster_train.comm.world import World
from ftcluster_train.engine.adapters import THRESHOLDS
from ftcluster_train.engine.data.token_samples import Samples
from ftcluster_train.engine.prepare import prepare
from ftcluster_train.errors import TrainError
from tests.engine.jobs import CLASSES, make_job, make_samples, make_task_of, result_of, run
from tests.engine.models import make_model
from tests.engine.runs import Row, classes, labelled, make_whole_job, write_data, write_model

TASK = "text-classification"
# the columns of the Jigsaw challenge: no lists, and no column with a class
COLUMNS = ("toxic", "threat", "insult")
SETS = ("validation_near", "validation_far", "validation_last")


def toxic(count: int, seed: int) -> list[Row]:
    rows = labelled(count, seed, lambda words: [words[0] % 2, words[1] % 5 == 0, words[2] % 3])
    return [
        {"id": n, "text": row["text"]}
        | {name: int(bool(label)) for name, label in zip(COLUMNS, row["label"], strict=True)}
        for n, row in enumerate(rows)
    ]


def as_lists(rows: Sequence[Row]) -> list[Row]:
    return [
        {"text": row["text"], "labels": [name for name in COLUMNS if row[name]]} for row in rows
    ]


def f1_at(limit: float, name: str, scores: list[Any], true: list[set[str]]) -> float:
    found = [row[name] >= limit for row in scores]
    wanted = [name in row for row in true]
    return 2 * sum(map(min, found, wanted)) / max(1, sum(found) + sum(wanted))


def job_of(folder: Path, rows: Any, model: str = "", purpose: Any = "train", **changes: Any) -> Any:
    sets = rows if isinstance(rows, dict) else {"train": rows}
    data = write_data(folder / "data", sets)
    model = model or write_model(folder / "bert", "bert", TASK)
    return replace(make_whole_job(folder / purpose, TASK, data, model, **changes), purpose=purpose)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("weights", ["balanced", {"LABEL_1": 5.0}])
def test_the_loss_with_weights_is_torchs(
    tmp_path: Path, world: World, weights: Any, smoothing: float
) -> None:
    """Compare uneven micro-batches, whose class weights differ."""
    samples = make_samples(TASK, 8)
    counts = Counter(sample["label"][0] for sample in samples)
    assert len(set(counts.values())) > 1
    values = [1.0, 5.0, 1.0]
    if weights == "balanced":
        values = [8 / (CLASSES * counts[number]) for number in range(CLASSES)]
    model = make_model("bert")
    job = make_job(
        tmp_path, TASK, max_steps=1, gradient_accumulation_steps=3, eval_strategy="epoch",
        label_smoothing_factor=smoothing,
    )  # fmt: skip
    options = replace(job.recipe.options, class_weights=weights)
    job = replace(job, recipe=replace(job.recipe, options=options))
    batch = make_task_of(job).collate(samples)
    logits, labels = model(**batch.inputs).logits, batch.targets["labels"]
    wanted = torch.nn.CrossEntropyLoss(torch.tensor(values), label_smoothing=smoothing)(
        logits, labels
    )
    wanted.backward()
    norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])
    model.zero_grad(set_to_none=True)
    done = run(job, model, samples, world, validation=samples)
    assert done.losses == [pytest.approx(wanted.item(), rel=1e-5)]
    assert done.of("step")[0]["grad_norm"] == pytest.approx(norm.item(), rel=1e-4)
    # the loss of evaluations has no weights
    with torch.no_grad():
        plain = torch.nn.functional.cross_entropy(done.model(**batch.inputs).logits, labels)
    assert done.result.metrics["loss"] == pytest.approx(plain.item(), rel=1e-5)


@pytest.mark.usefixtures("one_world")
def test_several_classes_of_a_row_are_those_of_transformers(tmp_path: Path) -> None:
    rows = toxic(240, 1)
    trained = job_of(
        tmp_path, {"train": rows[:120], SETS[0]: rows[:100:2], SETS[1]: rows[120:],
                   SETS[2]: rows[80:120]},
        options={"text_columns": (), "validation_splits": SETS},
        max_steps=6, eval_strategy="epoch", save_strategy="epoch",
        metric_for_best_model="f1_macro_far",
    )  # fmt: skip
    result = result_of(trained)
    folder = str(trained.run_dir / "model")
    config = AutoConfig.from_pretrained(folder)
    assert config.problem_type == "multi_label_classification"
    assert list(config.id2label.values()) == list(COLUMNS)
    of_far = {name: result["metrics"][f"{name}_far"] for name in ("f1_micro", "f1_macro", "loss")}
    thresholds = getattr(config, THRESHOLDS)
    for report in result["classes"].values():
        assert thresholds == {row[0]: row[-1] for row in report["classes"]}
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    pipeline = TextClassificationPipeline(model=model, tokenizer=tokenizer)
    scores = [
        {one["label"]: one["score"] for one in row}
        for row in pipeline([row["text"] for row in rows[120:]], top_k=None)
    ]
    # the loss equals the model's own loss
    losses = []
    for row in rows[120:]:
        labels = torch.tensor([[float(row[name]) for name in COLUMNS]])
        with torch.no_grad():
            losses.append(model(**tokenizer(row["text"], return_tensors="pt"), labels=labels).loss)
    assert of_far["loss"] == pytest.approx(torch.stack(losses).mean().item(), rel=1e-4)
    # evaluate uses the thresholds of the training, also for lists
    measured = result_of(job_of(tmp_path / "e", as_lists(rows[120:]), folder, "evaluate"))
    assert measured["metrics"] == pytest.approx(of_far, rel=1e-5)
    # no other threshold is better on the named set
    true = [{name for name in COLUMNS if row[name]} for row in rows[120:]]
    for name in COLUMNS:
        assert all(
            f1_at(thresholds[name], name, scores, true) >= f1_at(row[name], name, scores, true)
            for row in scores
        )
    predicted = result_of(
        job_of(
            tmp_path / "p", [{"text": row["text"]} for row in rows[120:]], folder, "predict",
            options={"all_probabilities": True},
        )
    )  # fmt: skip
    lines = (Path(predicted["predictions"]) / "predictions.jsonl").read_text().splitlines()
    for line, wanted in zip(map(json.loads, lines), scores, strict=True):
        assert line["probabilities"] == pytest.approx(wanted, abs=2e-6)
        assert line["prediction"] == [n for n in COLUMNS if wanted[n] >= thresholds[n]]


def test_lists_and_columns_are_the_same_samples(tmp_path: Path) -> None:
    rows = toxic(40, 2)
    found = []
    for name, form in (("columns", rows), ("lists", as_lists(rows))):
        inputs = prepare(job_of(tmp_path / name, form))
        sets = [Samples(Path(inputs.samples) / split) for split in ("train", "validation")]
        if name == "columns":  # names in lists are sorted alphabetically
            names = sets[0].about["names"]
            assert names == list(COLUMNS)
        other = sets[0].about["names"]
        texts = [
            [(s["input_ids"], sorted(other[n] for n in s["label"])) for s in one] for one in sets
        ]
        found.append(texts)
        assert inputs.report["sets"][0]["classes"].keys() == {*COLUMNS}
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("rows", "changes", "said"),
    [
        (lambda: [{**row, "label": "x"} for row in classes(20, 1)], {}, "have the class x"),
        (lambda: classes(20, 1), {"metrics": ("f1",)}, "f1 needs exactly two classes, but the"),
        (lambda: classes(20, 1), {"class_weights": {"7": 2}}, "class_weights has 7, but the class"),
        (
            lambda: as_lists(toxic(20, 1)), {"class_weights": "balanced"},
            "class_weights and label_smoothing_factor are not supported",
        ),
        (
            lambda: [*classes(20, 1), {"text": "w5", "label": ["1"]}], {},
            "mixes lists of labels and single labels",
        ),
        (
            lambda: [{**row, "label": f"[0.{row['label']}, 0.5]"} for row in classes(20, 1)], {},
            "are lists written as strings",
        ),
    ],
)  # fmt: skip
def test_classes_that_cannot_be_learned_or_measured(
    tmp_path: Path, rows: Any, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(TrainError) as caught:
        prepare(job_of(tmp_path, rows(), options=changes))
    assert said in caught.value.message


def test_f1_of_more_than_two_classes_is_refused_of_a_trained_model_too(tmp_path: Path) -> None:
    model = tmp_path / "trained"
    make_model("bert").save_pretrained(model)
    prepared = job_of(tmp_path, classes(20, 1))  # this job has a tokenizer
    AutoTokenizer.from_pretrained(prepared.recipe.model).save_pretrained(model)
    with pytest.raises(TrainError, match="f1 needs exactly two classes, but the data have 3"):
        prepare(
            job_of(tmp_path, classes(20, 1), str(model), "evaluate", options={"metrics": ("f1",)})
        )


def test_rows_without_text_or_class_are_left_out_on_request(tmp_path: Path) -> None:
    rows = classes(30, 1)
    broken = [{"text": None, "label": 1}, {"text": "w5", "label": ""}, {"text": " ", "label": 0}]
    mixed = [*rows[:10], broken[0], *rows[10:20], *broken[1:], *rows[20:]]
    asked = {"skip_incomplete": True}
    inputs = prepare(job_of(tmp_path, mixed, options=asked))
    wanted = prepare(job_of(tmp_path / "wanted", rows))
    assert "train: 3 rows without text or class are skipped" in inputs.notices
    assert inputs.report["sets"][0]["left_out"] == 3
    for split in ("train", "validation"):
        one, other = (Samples(Path(found.samples) / split) for found in (inputs, wanted))
        assert one.about["sha256"] == other.about["sha256"]
        assert one.about["names"] == ["0", "1", "2"]  # for numbers, the names are the numbers


@pytest.mark.usefixtures("one_world")
def test_what_a_model_was_trained_on_is_known_and_what_it_never_predicts_said(
    tmp_path: Path,
) -> None:
    rows = [{**row, "label": "ab"[n % 9 == 0]} for n, row in enumerate(classes(90, 3))]
    job = job_of(tmp_path, rows, max_steps=2, learning_rate=1e-30, eval_strategy="epoch")
    result = result_of(job)
    drawn = json.loads((job.run_dir / "validation_rows.json").read_text())["rows"]
    texts = [rows[int(place.removeprefix("train.jsonl:")) - 1]["text"] for place in drawn]
    kept = Samples(job.prefix / "cache" / "tokens" / _only(job) / "validation")
    tokenizer = AutoTokenizer.from_pretrained(job.recipe.model)
    assert [sample["input_ids"] for sample in kept] == tokenizer(texts)["input_ids"]
    model = job.run_dir / "model"
    assert len(read_rows(model)) == 90 - len(drawn)
    notices = prepare(job_of(tmp_path / "e", rows, str(model), "evaluate")).notices
    assert any(f"TRAINED ON {90 - len(drawn)} OF 90 samples" in one for one in notices)
    others = prepare(job_of(tmp_path / "o", classes(9, 8), str(model), "predict")).notices
    assert not any("TRAINED ON" in one for one in others)
    [never] = {row[0] for row in result["classes"]["validation"]["classes"] if not row[2]}
    said = [
        event["message"]
        for event in map(json.loads, (job.run_dir / "events.jsonl").read_text().splitlines())
        if event["event"] == "notice"
    ]
    wanted = f"NEVER PREDICTED for any row of validation: {never}; what may help: more epochs"
    [message] = [message for message in said if message.startswith(wanted)]
    # the weight of the rare class
    assert message.endswith("class_weights=balanced") == (never == "b")


def _only(job: Any) -> str:
    [folder] = (job.prefix / "cache" / "tokens").iterdir()
    return str(folder.name)
