"""Predictions of encoders that skip padding and unread rows: they equal transformers'."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional
from transformers import pipeline

from ftcluster_common.protocol.job import PREDICT
from ftcluster_kernels import linear
from ftcluster_kernels.documents import document_mask
from ftcluster_train.comm.world import World
from ftcluster_train.engine.models import call_model
from ftcluster_train.engine.prepare import prepare
from ftcluster_train.engine.rank import load
from ftcluster_train.engine.tasks.predictions import predict
from ftcluster_train.patching import unpadding
from tests.engine.jobs import result_of
from tests.engine.runs import Row, classes, make_whole_job, questions, write_data, write_model

pytestmark = [pytest.mark.needs("avx2", "compiler"), pytest.mark.usefixtures("one_world")]
KINDS = ("bert", "distilbert", "roberta")
TEXTS = [row["text"] for row in classes(40, 1)]


@pytest.fixture(autouse=True)
def unpadded(monkeypatch: pytest.MonkeyPatch) -> list[Sequence[int]]:
    """Record the lengths of the samples of each batch that passes without padding."""
    found: list[Sequence[int]] = []

    def mask(lengths: Sequence[int], causal: bool) -> torch.Tensor:
        found.append(lengths)
        return document_mask(lengths, causal)

    monkeypatch.setattr(unpadding, "document_mask", mask)
    monkeypatch.setattr(linear, "MUCH_WORK", 0)  # also skip rows of small matmuls
    return found


def job_of(folder: Path, task: str, kind: str, rows: Sequence[Row], precision: str = "fp32") -> Any:
    model = write_model(folder / "model", kind, task, head=task != "sentence-similarity")
    data = write_data(folder / "data", {"test": rows})
    job = make_whole_job(folder / "predict", task, data, model)
    recipe = replace(job.recipe, precision=precision)
    return replace(job, recipe=recipe, precision=precision, purpose=PREDICT)


def predicted(job: Any) -> list[Row]:
    text = (Path(result_of(job)["predictions"]) / "predictions.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def longest_twice(unpadded: list[Sequence[int]]) -> bool:
    """Return True if samples of several lengths passed without padding."""
    return any(len({*lengths}) > 1 for lengths in unpadded)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("kind", KINDS)
def test_classes_are_those_of_the_pipeline(
    tmp_path: Path, kind: str, precision: str, unpadded: list[Sequence[int]]
) -> None:
    task = "text-classification"
    job = job_of(tmp_path, task, kind, [{"text": text} for text in TEXTS], precision)
    lines = predicted(job)
    assert longest_twice(unpadded)
    classify = pipeline(task, model=job.recipe.model, device="cpu")
    for text, line in zip(TEXTS, lines, strict=True):
        scores = {one["label"]: one["score"] for one in classify(text, top_k=None)}
        exact = precision == "fp32"
        assert line["probability"] == pytest.approx(
            scores[line["prediction"]], abs=1e-5 if exact else 1e-2
        )
        if exact:
            assert line["prediction"] == max(scores, key=scores.__getitem__)


@pytest.mark.parametrize("kind", KINDS)
def test_embeddings_are_those_of_the_pipeline(
    tmp_path: Path, kind: str, unpadded: list[Sequence[int]]
) -> None:
    texts = [" ".join(text.split()[:20]) for text in TEXTS]
    job = job_of(tmp_path, "sentence-similarity", kind, [{"text": text} for text in texts])
    lines = predicted(job)
    assert longest_twice(unpadded)
    extract = pipeline("feature-extraction", model=job.recipe.model, device="cpu")
    for text, line in zip(texts, lines, strict=True):
        hidden = torch.tensor(extract(text)[0])
        wanted = functional.normalize(hidden.mean(0), dim=0)
        torch.testing.assert_close(torch.tensor(line["prediction"]), wanted, atol=1e-5, rtol=0)


@pytest.mark.parametrize("task", ["question-answering", "token-classification"])
@pytest.mark.parametrize("kind", KINDS)
def test_tokens_are_those_of_a_model_that_reads_one_sample_at_a_time(
    tmp_path: Path, task: str, kind: str, world: World, unpadded: list[Sequence[int]]
) -> None:
    rows = questions(20, 1) if task == "question-answering" else [{"text": t} for t in TEXTS]
    job = job_of(tmp_path, task, kind, rows)
    of_task, model, sets = load(job, prepare(job))
    [samples] = sets.values()
    with torch.inference_mode():
        wanted = [
            of_task.predictions(call_model(model.eval(), of_task.collate([one]).inputs), [one])[0]
            for one in samples
        ]
    assert not unpadded
    found = predict(of_task, model, samples, world, bf16=False)
    assert longest_twice(unpadded)
    for one, other in zip(found, wanted, strict=True):
        numbers, others = (list(_numbers(value)) for value in (one, other))
        assert numbers == pytest.approx(others, abs=1e-5)


def _numbers(value: Any) -> Any:
    if isinstance(value, list | tuple):
        for part in value:
            yield from _numbers(part)
    else:
        yield -1 if value is None else value
