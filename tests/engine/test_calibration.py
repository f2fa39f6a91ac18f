"""Temperatures and thresholds against torch's LBFGS and scikit-learn, on scikit-learn's data."""

import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

from ftcluster_common.protocol.job import EVALUATE, PREDICT, Job
from ftcluster_train.engine.prepare import prepare
from ftcluster_train.engine.tasks.classify.calibration import (
    Temperature,
    best_temperature,
    calibration_error,
    probabilities,
)
from ftcluster_train.engine.tasks.classify.metrics import best_threshold
from ftcluster_train.errors import TrainError
from tests.engine.beside import COMPARED
from tests.engine.jobs import run_rank
from tests.engine.runs import (
    classes,
    labelled,
    make_whole_job,
    sets_of_classes,
    write_data,
    write_model,
)

TASK = "text-classification"
# An overconfident and an underconfident classifier of handwritten digits, and scikit-learn's curve;
# scores of breast cancer, and each metric at all thresholds.
SKLEARN = """
import json
import numpy as np
from sklearn.calibration import calibration_curve
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef
digits = load_digits()
inputs, labels = digits.data + np.random.default_rng(0).normal(0, 6, (1797, 64)), digits.target
cases = []
for strength in (100.0, 1e-6):
    model = LogisticRegression(C=strength, max_iter=300).fit(inputs[:300], labels[:300])
    logits, true = model.decision_function(inputs[300:900]), labels[300:900]
    shares = np.exp(logits - logits.max(1, keepdims=True))
    shares /= shares.sum(1, keepdims=True)
    right = shares.argmax(1) == true
    accuracies, confidences = calibration_curve(right, shares.max(1), n_bins=15)
    edges = np.linspace(0, 1, 16)
    counts = np.bincount(np.searchsorted(edges[1:-1], shares.max(1)), minlength=15)
    error = np.abs(accuracies - confidences) @ counts[counts > 0] / len(true)
    cases.append([logits.tolist(), true.tolist(), error])
cancer = load_breast_cancer()
model = LogisticRegression(max_iter=50).fit(cancer.data[:60, :2], cancer.target[:60])
sure, true = model.predict_proba(cancer.data[60:, :2])[:, 1], cancer.target[60:]
by_count = {  # by the number of rows that are predicted
    name: [score(true, sure >= at) for at in sorted(sure, reverse=True)]
    for name, score in {
        "f1": f1_score, "accuracy": accuracy_score, "matthews": matthews_corrcoef,
        "f1_macro": lambda a, b: f1_score(a, b, average="macro"),
    }.items()
}
print(json.dumps([cases, sure.tolist(), true.tolist(), by_count]))
"""


@pytest.fixture(scope="module")
def sklearn() -> Any:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SKLEARN], env={"PYTHONPATH": COMPARED},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return json.loads(done.stdout)


def by_lbfgs(logits: torch.Tensor, labels: torch.Tensor) -> float:
    temperature = torch.ones(1, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([temperature], max_iter=200, line_search_fn="strong_wolfe")

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = cross_entropy(logits.double() / temperature, labels)
        loss.backward()
        return loss

    optimizer.step(closure)
    return temperature.item()


def test_temperatures_are_those_of_lbfgs(sklearn: Any) -> None:
    over, under = (
        (best_temperature(logits, true), by_lbfgs(torch.tensor(logits), torch.tensor(true)))
        for logits, true, _ in sklearn[0]
    )
    assert over[0] == pytest.approx(over[1], rel=1e-3)
    assert under[0] == pytest.approx(under[1], rel=1e-3)
    assert over[0] > 1.5
    assert under[0] < 0.7


def test_a_temperature_without_an_optimum_is_doubted() -> None:
    temperature = Temperature(None)
    for logits, labels, why in (
        ([[0.0, 1.0], [2.0, 0.0]], [1, 0], "all rows are predicted correctly"),
        ([[0.0, 9.0], [9.0, 0.0]], [0, 1], "do not separate the classes"),
    ):
        temperature.choose(logits, labels)
        assert why in temperature.doubt
    temperature.choose([[0.0, 8.0]] * 4, [1, 1, 1, 0])
    assert temperature.value == pytest.approx(8 / math.log(3), rel=1e-5)
    assert not temperature.doubt


def test_the_error_is_that_of_scikit_learns_curve(sklearn: Any) -> None:
    for logits, true, error in sklearn[0]:
        assert calibration_error(probabilities(logits), true) == pytest.approx(error, rel=1e-6)
    logits, true, before = sklearn[0][0]
    after = calibration_error(probabilities(logits, best_temperature(logits, true)), true)
    assert after < before / 2  # of the overconfident classifier


@pytest.mark.parametrize("metric", ["f1", "f1_macro", "accuracy", "matthews"])
def test_no_threshold_of_scikit_learn_is_better(sklearn: Any, metric: str) -> None:
    _, sure, true, by_count = sklearn
    at = best_threshold(sure, [*map(bool, true)], metric)
    count = sum(value >= at for value in sure)
    assert by_count[metric][count - 1] == max(by_count[metric])


def job_of(folder: Path, options: dict[str, Any], rows: Any = None, **training: Any) -> Job:
    sets = {
        "train": rows or labelled(60, 1, lambda words: ["no", "yes"][words[0] % 5 == 0]),
        "validation": labelled(150, 2, lambda words: ["no", "yes"][words[0] % 5 == 0]),
        "test": labelled(50, 3, lambda words: ["no", "yes"][words[0] % 5 == 0]),
    }
    data = write_data(folder / "data", sets)
    model = write_model(folder / "bert", "bert", TASK)
    return make_whole_job(
        folder / "runs/one", TASK, data, model, options, {"test_split_rows": 1},
        **{"num_train_epochs": 4, "eval_strategy": "epoch", "learning_rate": 5e-3, **training},
    )  # fmt: skip


def outputs_of(model: str, texts: list[str]) -> torch.Tensor:
    tokenizer = AutoTokenizer.from_pretrained(model)
    plain = AutoModelForSequenceClassification.from_pretrained(model).eval()
    with torch.inference_mode():
        return torch.cat([plain(**tokenizer(text, return_tensors="pt")).logits for text in texts])


@pytest.mark.usefixtures("one_world")
def test_the_best_model_is_calibrated_on_the_validation_set(tmp_path: Path) -> None:
    """The saved temperature is that of LBFGS on logits of plain transformers; predict uses it."""
    options = {"calibrate": True, "threshold_metric": "f1"}
    best = {"save_strategy": "epoch", "load_best_model_at_end": True, "learning_rate": 1e-2}
    job = job_of(tmp_path, options, **best)
    events = run_rank(job)
    result, model = events[-1], str(job.run_dir / "model")
    config = AutoConfig.from_pretrained(model)
    rows = labelled(150, 2, lambda words: ["no", "yes"][words[0] % 5 == 0])
    logits = outputs_of(model, [row["text"] for row in rows])
    labels = torch.tensor([config.label2id[row["label"]] for row in rows])
    assert config.calibration_temperature == pytest.approx(by_lbfgs(logits, labels), rel=5e-3)
    [at] = config.label_thresholds.values()
    sure = (logits.double() / config.calibration_temperature).softmax(-1)
    assert at == pytest.approx(
        best_threshold(sure[:, 1].tolist(), (labels == 1).tolist()), abs=1e-3
    )
    assert at != 0.5
    metrics = result["metrics"]
    assert metrics["ece_calibrated"] == pytest.approx(
        calibration_error(sure, labels.tolist()), abs=2e-2
    )
    assert {"ece", "ece_calibrated", "test_ece", "test_ece_calibrated"} <= metrics.keys()
    report = result["classes"]["test"]  # tuned on the validation set alone
    assert (report["temperature"], report["classes"][1][-1]) == (config.calibration_temperature, at)

    other = {"text_columns": ("text",), "max_length": 48}
    recipe = replace(job.recipe, model=model, options=type(job.recipe.options)(**other))
    asked = write_data(tmp_path / "asked", {"test": rows[:40]})
    predicting = replace(
        job, run_dir=tmp_path / "runs/two", recipe=replace(recipe, data=asked), purpose=PREDICT
    )
    events = run_rank(predicting)
    notices = [event["message"] for event in events if event["event"] == "notice"]
    assert any(text.startswith("the probabilities are calibrated: temp") for text in notices)
    assert any(text.startswith("yes is predicted from a probability of ") for text in notices)
    [file] = Path(events[-1]["predictions"]).iterdir()
    answers = [json.loads(line) for line in file.read_text().splitlines()]
    for answer, row in zip(answers, sure.tolist(), strict=False):
        assert answer["prediction"] == ["no", "yes"][row[1] >= at]
        chosen = config.label2id[answer["prediction"]]
        assert answer["probability"] == pytest.approx(row[chosen], abs=1e-4)
    assert any((row[1] >= at) != (row[1] >= 0.5) for row in sure.tolist())
    data = write_data(tmp_path / "again", {"test": rows})
    evaluating = replace(
        job, run_dir=tmp_path / "runs/three", recipe=replace(recipe, data=data), purpose=EVALUATE
    )
    measured = run_rank(evaluating)[-1]["metrics"]
    assert measured["f1"] == pytest.approx(metrics["f1"])
    assert measured["ece_calibrated"] == pytest.approx(metrics["ece_calibrated"], abs=2e-2)

    # a model that is trained further without calibration loses both settings
    plain = replace(
        recipe,
        data=job.recipe.data,
        options=replace(recipe.options, validation_splits=("validation",)),
    )
    further = replace(job, run_dir=tmp_path / "runs/four", recipe=plain)
    assert "ece" not in run_rank(further)[-1]["metrics"]
    saved = json.loads((further.run_dir / "model/config.json").read_text())
    assert not {"calibration_temperature", "label_thresholds"} & saved.keys()


@pytest.mark.usefixtures("one_world")
def test_adapters_keep_the_temperature(tmp_path: Path) -> None:
    job = job_of(tmp_path, {"calibrate": True, "lora_r": 2}, num_train_epochs=1)
    model = Path(run_rank(job)[-1]["model"])
    head = json.loads((model / "ftcluster.json").read_text())["head"]
    assert head["calibration_temperature"] > 0
    options = replace(job.recipe.options, lora_r=None, calibrate=False)
    recipe = replace(job.recipe, model=str(model), options=options)
    again = replace(job, run_dir=tmp_path / "runs/two", recipe=recipe, purpose=EVALUATE)
    events = run_rank(again)
    assert "ece_calibrated" in events[-1]["metrics"]
    wanted = f"temperature {head['calibration_temperature']:.4g}"
    assert any(wanted in event.get("message", "") for event in events)


def test_what_cannot_be_tuned_is_refused(tmp_path: Path) -> None:
    three = classes(60, 1)
    job = job_of(tmp_path / "a", {"threshold_metric": "f1"}, three)
    data = write_data(tmp_path / "three", {"train": three})
    with pytest.raises(TrainError, match="exactly two classes, the data have 3"):
        prepare(replace(job, recipe=replace(job.recipe, data=data)))
    several = write_data(tmp_path / "several", {"train": sets_of_classes(60, 1)})
    job = job_of(tmp_path / "b", {"calibrate": True})
    with pytest.raises(TrainError, match="calibrate cannot be used if a row may have several"):
        prepare(replace(job, recipe=replace(job.recipe, data=several)))
    few = write_data(tmp_path / "few", {"train": labelled(60, 1, lambda words: words[0] % 2)})
    job = job_of(tmp_path / "c", {"threshold_metric": "accuracy"})
    notices = prepare(replace(job, recipe=replace(job.recipe, data=few))).notices
    assert "validation: the threshold stays at 0.5" in "".join(notices)
