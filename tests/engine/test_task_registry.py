"""A task is found by its name, also if it is not part of ftcluster."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForSequenceClassification

from ftcluster_common.data.column_uses import Columns
from ftcluster_common.data.row_checks import CheckRow, check_columns
from ftcluster_common.tasks import registry as specs
from ftcluster_common.tasks.registry import TASKS
from ftcluster_common.tasks.spec import Options, TaskSpec
from ftcluster_train.engine.data.sources import Rows
from ftcluster_train.engine.data.token_samples import Sample, Samples, SampleWriter
from ftcluster_train.engine.tasks import registry
from ftcluster_train.engine.tasks.base import Batch, Task
from ftcluster_train.engine.tasks.registry import register, registered, task_class
from tests.engine.jobs import make_job, result_of, run_rank
from tests.engine.runs import write_data, write_model


@dataclass(frozen=True)
class WordCount(Options):
    """Options of a task that predicts the number of words of a text."""

    body_column: str = "body"
    max_length: int = 32
    validation_split_percentage: float = 10.0


class WordCountSpec(TaskSpec[WordCount]):
    """A task with only the required declarations."""

    name = "word-count"
    fields = WordCount

    def columns(self, options: WordCount, _columns: Sequence[str], _answered: bool) -> Columns:
        return {"text": (options.body_column,)}

    def row_check(self, options: WordCount, _answered: bool, _columns: Sequence[str]) -> CheckRow:
        return partial(check_columns, [options.body_column], [])

    def row_form(self, options: WordCount, _answered: bool) -> str:
        return f"each row has {options.body_column}"

    def metric_names(self, _options: WordCount) -> tuple[str, ...]:
        return ("mean_error",)


class WordCountTask(Task):
    """A task that predicts the number of words; its metric is the mean error in words."""

    name = "word-count"
    options: WordCount
    model_class = AutoModelForSequenceClassification

    def encode_split(self, rows: Rows, _split: str, limit: int, folder: Path) -> list[str]:
        writer = SampleWriter(folder, {**self.reader.token_kinds(), "words": "i"})
        for row in rows:
            text = row[self.options.body_column]
            columns, _ = self.reader.tokenize([[text]], limit)
            sample = {name: column[0] for name, column in columns.items()}
            writer.add({**sample, "words": [len(text.split())]})
        writer.close()
        return []

    def model_settings(self, _train_set: Samples) -> dict[str, Any]:
        return {"num_labels": 1, "problem_type": None}

    def collate(self, samples: Sequence[Sample]) -> Batch:
        words = torch.tensor([float(sample["words"][0]) for sample in samples])
        return Batch(self.reader.pad(samples), {"words": words})

    def loss(self, outputs: Any, targets: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return (outputs.logits[:, 0].float() - targets["words"]).abs().sum()

    def predictions(self, outputs: Any, _samples: Sequence[Sample]) -> list[Any]:
        return list(outputs.logits[:, 0].float().tolist())

    def score(self, predictions: Sequence[Any], samples: Samples) -> dict[str, float]:
        errors = [
            abs(guess - sample["words"][0])
            for guess, sample in zip(predictions, samples, strict=True)
        ]
        return {"mean_error": sum(errors) / len(errors)}


@pytest.fixture
def registry_of_its_own(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    kinds = {name: [*kinds] for name, kinds in registered().items()}
    monkeypatch.setattr(registry, "_kinds", kinds)
    specs.register(WordCountSpec())
    yield
    del TASKS["word-count"], specs._BY_FIELDS[WordCount]


def test_every_task_of_a_recipe_is_registered() -> None:
    assert registered().keys() == TASKS.keys()


@pytest.mark.parametrize(
    ("purpose", "teacher", "kind"),
    [
        ("train", None, "SentenceSimilarityTask"),
        ("train", "teacher", "EmbeddingDistillationTask"),
        ("evaluate", "teacher", "SentenceSimilarityTask"),
        ("train", "guide", "GuidedSimilarityTask"),
        ("evaluate", "guide", "SentenceSimilarityTask"),
    ],
)
def test_the_class_that_serves_a_recipe_is_taken(
    tmp_path: Path, purpose: Any, teacher: str | None, kind: str
) -> None:
    recipe = replace(make_job(tmp_path, "sentence-similarity").recipe, teacher=teacher)
    if teacher == "guide":
        recipe = replace(recipe, options=replace(recipe.options, loss="gist"))  # type: ignore[call-arg]
    assert task_class(recipe, purpose).__name__ == kind


@pytest.mark.usefixtures("registry_of_its_own")
def test_a_name_has_one_family_of_classes() -> None:
    class Other(WordCountTask):
        """A class with another task's name."""

        name = "causal-lm"

    with pytest.raises(ValueError, match=r"'causal-lm' is already used by .*CausalLmTask"):
        register(Other)
    assert register(WordCountTask) is register(WordCountTask)
    assert registered()["word-count"] == (WordCountTask,)


@pytest.mark.usefixtures("registry_of_its_own", "one_world")
def test_a_task_of_ones_own_is_trained_and_evaluated(tmp_path: Path) -> None:
    register(WordCountTask)
    texts = [" ".join(["w5", "w6", "w7"][: 1 + n % 3]) for n in range(24)]
    rows = [{"body": text} for text in texts]
    data = write_data(tmp_path / "data", {"train": rows, "validation": rows[:6]})
    model = write_model(tmp_path / "model", "bert", "text-classification")
    job = make_job(
        tmp_path / "runs/one", "text-classification", max_steps=60, eval_strategy="steps",
        eval_steps=30, learning_rate=1e-2,
    )  # fmt: skip
    recipe = replace(
        job.recipe, task="word-count", options=WordCount(), data=data, model=model,
        from_scratch=False,
    )  # fmt: skip
    job = replace(job, prefix=tmp_path, recipe=recipe)
    events = run_rank(job)
    [result] = [event for event in events if event["event"] == "result"]
    # a constant prediction of two words would give 0.67
    assert result["metrics"]["mean_error"] < 0.5
    trained = replace(
        job, run_dir=tmp_path / "runs/two", purpose="evaluate",
        recipe=replace(job.recipe, model=result["model"]),
    )  # fmt: skip
    assert result_of(trained)["metrics"] == pytest.approx(result["metrics"], abs=1e-4)
