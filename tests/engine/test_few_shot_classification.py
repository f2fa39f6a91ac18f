"""Few labels become a classifier that sentence-transformers and SetFit load."""

import json
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from ftcluster_common.protocol.job import PREDICT, Job
from ftcluster_train.engine.data.token_samples import Samples
from ftcluster_train.engine.prepare import prepare
from ftcluster_train.engine.tasks.few_shot.logistic_head import LogisticHead, fit_head
from ftcluster_train.engine.tasks.few_shot.setfit_files import (
    read_head,
    write_head,
    write_setfit_head,
)
from ftcluster_train.errors import TrainError
from tests.engine.beside import COMPARED
from tests.engine.jobs import result_of
from tests.engine.runs import Row, make_whole_job, write_data, write_model

pytestmark = pytest.mark.usefixtures("one_world")
TASK = "few-shot-classification"
NAMES = ("bird", "cat", "dog")


def labelled(count: int, seed: int) -> list[Row]:
    """Texts with a word of their class among others."""
    draw = torch.Generator().manual_seed(seed)
    rows: list[Row] = []
    for number in range(count):
        kind = number % len(NAMES)
        words = torch.randint(20, 50, (4,), generator=draw).tolist()
        words[number % 4] = 8 + kind
        rows.append({"text": " ".join(f"w{word}" for word in words), "label": NAMES[kind]})
    return rows


def job_of(folder: Path, rows: list[Row], **changes: Any) -> Job:
    model = write_model(folder / "model", "bert", TASK)
    data = write_data(folder / "data", {"train": rows, "validation": labelled(30, 2)})
    return make_whole_job(folder / "run", TASK, data, model, **changes)


def test_a_trained_model_classifies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The saved folder gives the same probabilities in sentence-transformers and scikit-learn."""
    job = job_of(
        tmp_path, labelled(48, 1), batch_size=32, precision="fp32", max_steps=60,
        learning_rate=3e-3, eval_strategy="epoch", options={"setfit_head": True},
    )  # fmt: skip
    result = result_of(job)
    assert result["metrics"]["accuracy"] > 0.8
    folder = Path(result["model"])
    assert json.loads((folder / "config.json").read_text())["id2label"]["2"] == "dog"
    assert json.loads((folder / "config_setfit.json").read_text()) == {
        "normalize_embeddings": False, "labels": [*NAMES]
    }  # fmt: skip

    rows = labelled(30, 2)
    texts = [str(row["text"]) for row in rows]
    predicted = predictions_of(tmp_path / "predict", folder, texts)
    right = [
        row["prediction"] == other["label"] for row, other in zip(predicted, rows, strict=True)
    ]
    assert sum(right) / len(right) == pytest.approx(result["metrics"]["accuracy"])
    monkeypatch.syspath_prepend(COMPARED)
    from sentence_transformers import SentenceTransformer

    embeddings = SentenceTransformer(str(folder), device="cpu").encode(texts)
    # SetFit reads this file by joblib, which falls back to pickle; our own test wrote the file
    head = pickle.loads((folder / "model_head.pkl").read_bytes())
    likely = head.predict_proba(embeddings)
    assert [NAMES[number] for number in head.predict(embeddings)] == [
        row["prediction"] for row in predicted
    ]
    assert likely.max(1).tolist() == pytest.approx(
        [row["probability"] for row in predicted], abs=1e-4
    )


def predictions_of(folder: Path, model: Path, texts: list[str]) -> list[dict[str, Any]]:
    """Return the rows that a prediction with the model writes."""
    folder.mkdir()
    data = write_data(folder / "data", {"rows": [{"text": text} for text in texts]})
    job = make_whole_job(folder / "run", TASK, data, str(model))
    job = replace(job, purpose=PREDICT)
    lines = (Path(result_of(job)["predictions"]) / "predictions.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize("count", [2, 3, 6])
def test_the_head_is_that_of_scikit_learn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    monkeypatch.syspath_prepend(COMPARED)
    from sklearn.linear_model import LogisticRegression

    torch.manual_seed(count)
    classes = [number % count for number in range(60)]
    embeddings = torch.randn(60, 12) + 0.5 * torch.randn(count, 12)[classes]
    theirs = LogisticRegression(tol=1e-10, max_iter=10_000).fit(
        embeddings.double().numpy(), classes
    )
    head = fit_head(embeddings, classes, count)
    torch.testing.assert_close(head.weight, torch.tensor(theirs.coef_), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(head.bias, torch.tensor(theirs.intercept_), rtol=1e-4, atol=1e-5)
    new = torch.randn(9, 12)
    likely = torch.tensor(theirs.predict_proba(new.double().numpy()))
    torch.testing.assert_close(head.log_probabilities(new).exp(), likely, rtol=1e-4, atol=1e-6)
    write_head(head, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["head.safetensors"]
    write_setfit_head(head, [f"c{number}" for number in range(count)], tmp_path)
    written = pickle.loads((tmp_path / "model_head.pkl").read_bytes())
    assert type(written) is LogisticRegression
    assert written.predict_proba(new.double().numpy()) == pytest.approx(likely.numpy(), abs=1e-5)
    assert repr(written).startswith("LogisticRegression(")
    torch.testing.assert_close(read_head(tmp_path).weight, head.weight)


def test_a_folder_without_a_head_is_no_classifier(tmp_path: Path) -> None:
    with pytest.raises(TrainError, match=r"head\.safetensors, the classifier's head, cannot"):
        read_head(tmp_path)
    write_head(LogisticHead(torch.ones(1, 2).double(), torch.ones(1).double()), tmp_path)
    (tmp_path / "head.safetensors").write_bytes(b"cut")
    with pytest.raises(TrainError, match="cannot be read"):
        read_head(tmp_path)


def test_pairs_and_shots(tmp_path: Path) -> None:
    """A validation set begins with the training rows, whose embeddings fit the head."""
    job = job_of(tmp_path, labelled(30, 1), options={"num_samples": 4})
    inputs = prepare(job)
    assert "train: 12 of 30 rows are used, at most 4 of each class (num_samples)" in inputs.notices
    train_set = Samples(Path(inputs.samples) / "train")
    assert [sample["label"][0] for sample in train_set].count(1.0) == len(train_set) / 2 == 48
    validation = Samples(Path(inputs.samples) / "validation")
    assert len(validation) == 12 + 30
    shots = train_set.about["shots"]
    assert [validation[number] for number in range(12)] == shots["samples"]
    assert validation.about["shots"] == shots["classes"] == [0, 1, 2] * 4


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ([{"text": "w5", "label": "a"}, {"text": "w6", "label": "a"}], "all rows have the class a"),
        ([{"text": "w5", "label": "a"}, {"text": "w6", "label": "b"}], "no class has two rows"),
    ],
)
def test_rows_without_pairs(tmp_path: Path, rows: list[Row], problem: str) -> None:
    with pytest.raises(TrainError, match=f"train: {problem}"):
        prepare(job_of(tmp_path, rows))
