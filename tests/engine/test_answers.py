"""Answers to questions from overlapping features, a model that is always right, and the metrics."""

from pathlib import Path
from types import SimpleNamespace

import torch

from ftcluster_train.engine.data.token_samples import Samples
from ftcluster_train.engine.tasks.registry import make_task
from tests.engine.models import LONGEST, make_tokenizer
from tests.engine.runs import make_whole_job, questions, write_data

METRICS = ("exact_match", "f1", "HasAns_exact", "HasAns_f1", "NoAns_exact", "NoAns_f1")


def test_answers_survive_the_way_through_overlapping_features(tmp_path: Path) -> None:
    rows = questions(12, 2)
    data = write_data(tmp_path / "data", {"train": rows, "validation": rows})
    options = {"version_2_with_negative": True}
    job = make_whole_job(tmp_path / "run", "question-answering", data, "model", options)
    task = make_task(job.recipe, make_tokenizer())
    task.encode(data, LONGEST, tmp_path / "samples")
    samples = Samples(tmp_path / "samples/validation")
    assert len(samples) > 15  # 12 questions give more samples
    found = []
    for sample in samples:
        size = len(sample["input_ids"])
        logits = torch.zeros(2, 1, size)
        logits[0, 0, sample["start"][0]] = logits[1, 0, sample["end"][0]] = 9.0
        outputs = SimpleNamespace(start_logits=logits[0], end_logits=logits[1])
        assert task.collate([sample]).inputs["input_ids"].shape == (1, size)
        found += task.predictions(outputs, [sample])
    assert task.score(found, samples) == dict.fromkeys(METRICS, 100.0)
