"""A task outside of ftcluster is read, checked, counted and planned like any other task."""
# ruff: noqa: ARG002, a method of a task has the arguments of all tasks

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import pytest

from ftcluster.errors import InputError, RecipeError
from ftcluster.planning.plan import plan
from ftcluster.recipe.data_columns import find_columns
from ftcluster.recipe.data_counts import count_rows
from ftcluster.recipe.dataset_checks import check_data
from ftcluster.recipe.recipe import all_fields, json_schema, parse_recipe
from ftcluster_common.data.column_uses import Columns
from ftcluster_common.data.row_checks import CheckRow, check_columns
from ftcluster_common.limits import limited
from ftcluster_common.models.trained_model import pipeline_of, trained_document
from ftcluster_common.protocol.job import Job, read_job
from ftcluster_common.recipe import Recipe
from ftcluster_common.tasks import registry
from ftcluster_common.tasks.registry import TASKS, register, spec_of
from ftcluster_common.tasks.seq2seq import Seq2SeqLmSpec
from ftcluster_common.tasks.spec import Adapters, Contradiction, TaskSpec
from tests.unit.clusters import STACKS, cluster, host

TEXT = "task: word-count\nmodel: m\ndata: d\n"
BEST = ("training.load_best_model_at_end=true", "training.save_strategy=epoch",
        "training.metric_for_best_model=mean_error")  # fmt: skip


@dataclass(frozen=True)
class WordCount(Adapters):
    """Options of a task that predicts the number of words of a text."""

    body_column: str = "body"
    most_words: int = limited(50, at_least=1)
    max_length: int = limited(64, at_least=2)
    validation_split_percentage: float = limited(10.0, at_least=0.001, at_most=50)


class WordCountSpec(TaskSpec[WordCount]):
    """A task with only the required declarations."""

    name = "word-count"
    fields = WordCount

    def columns(self, options: WordCount, columns: Sequence[str], answered: bool) -> Columns:
        return {"text": (options.body_column,)}

    def row_check(self, options: WordCount, answered: bool, columns: Sequence[str]) -> CheckRow:
        return partial(check_columns, [options.body_column], [])

    def row_form(self, options: WordCount, answered: bool) -> str:
        return f"each row has {options.body_column}"

    def metric_names(self, options: WordCount) -> tuple[str, ...]:
        return ("mean_error", "loss")

    def contradictions(self, options: WordCount) -> Iterator[Contradiction]:
        if options.most_words > options.max_length:
            yield "most_words", "a text has no more words than tokens"
        yield from super().contradictions(options)


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    register(WordCountSpec())
    yield
    del TASKS["word-count"], registry._BY_FIELDS[WordCount]


def recipe_of(*overrides: str) -> Recipe:
    return parse_recipe(TEXT, "own.yml", overrides)


def test_its_recipe_has_its_fields_and_those_of_every_task() -> None:
    recipe = recipe_of("most_words=9", "lora_r=4", *BEST)
    assert recipe.options == WordCount(most_words=9, lora_r=4)
    assert (recipe.max_length, recipe.lora_r, recipe.texts_of_a_sample) == (64, 4, 1)
    assert {"body_column", "most_words"} <= all_fields().keys()
    names = json_schema()["properties"]["task"]["enum"]
    assert (names[0], names[-1]) == ("text-classification", "word-count")


def test_what_is_wrong_with_it_is_reported_with_its_place() -> None:
    for override, problem in {
        "most_words=90": "'most_words=90': a text has no more words than tokens",
        "most_words=0": "'most_words=0': 'most_words' must be at least 1, got 0",
        "merge_adapters=true": "merge_adapters is for adapters, whose rank is lora_r: 16",
        "training.metric_for_best_model=f1": "of this task; its metrics: loss, mean_error",
        "doc_stride=3": "'doc_stride' is a field only of other tasks: question-answering, token-cl",
        "teacher=m": "need a teacher (teacher=DIR, or a name on the Hub)",
        "task=word-counts": "few-shot-classification, word-count, got 'word-counts'",
    }.items():
        with pytest.raises(RecipeError) as caught:
            recipe_of(override)
        assert problem in str(caught.value)


def test_its_data_are_checked_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    rows = [{"body": "one of three", "remark": "a text that nobody reads"}, {"body": "two words"}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    recipe = replace(recipe_of(), data=str(tmp_path))
    check_data(tmp_path, recipe)
    columns = find_columns(recipe)
    assert columns == {"text": ("body",), "not read": ("remark",)}
    sets, notes = count_rows(recipe, columns)
    assert (sets[0]["rows"], sets[0]["classes"], len(notes)) == (2, {}, 1)
    path.write_text('{"body": "a"}\n{"body": 3}\n')
    with pytest.raises(InputError) as caught:
        check_data(tmp_path, recipe)
    assert "train.jsonl:2: column body must be a string, got 3" in str(caught.value)
    assert caught.value.hint == "each row has body"


def test_it_is_planned_and_its_job_is_read_by_hosts(tmp_path: Path) -> None:
    recipe = recipe_of("most_words=9")
    assert plan(cluster(host("a"), host("b")), recipe, STACKS).world_size > 1
    job = Job("r-1", tmp_path, Path("/opt/ftcluster"), recipe, "bf16", False)
    (tmp_path / "job.json").write_text(json.dumps(job.to_dict(), default=str))
    assert read_job(tmp_path).recipe == recipe


def test_its_model_says_what_it_was_trained_for() -> None:
    document = trained_document(recipe_of(), {"body_column": "review"})
    assert document["options"] == {"body_column": "review", "most_words": 50, "max_length": 64}
    assert pipeline_of("word-count", asdict(WordCount())) == "word-count"


def test_a_name_and_fields_belong_to_one_task() -> None:
    with pytest.raises(ValueError, match="a task word-count already"):
        register(WordCountSpec())

    class Summaries(Seq2SeqLmSpec):
        name = "summaries"

    with pytest.raises(ValueError, match="the class Seq2SeqLm belongs to the task seq2seq-lm"):
        register(Summaries())
    assert isinstance(spec_of(WordCount()), WordCountSpec)
