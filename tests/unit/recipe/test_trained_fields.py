"""A model's ftcluster.json sets fields of a task, and may come from others."""

import json
import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from ftcluster.errors import FtclusterError, UsageError
from ftcluster.operations.train.recipe_words import trained_recipe
from ftcluster.recipe.names import OTHER_NAMES, OTHER_VALUES
from ftcluster.recipe.recipe import RECIPES, all_fields, load_recipe
from ftcluster.recipe.trained_fields import trained_fields
from ftcluster.text.printable import printable
from ftcluster_common.models.trained_model import FILE, trained_document
from ftcluster_common.tasks.registry import TASKS

MINE = ["data=mine.csv"]
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
)
NAMES = st.one_of(
    st.sampled_from(sorted({*all_fields(), *OTHER_NAMES, *OTHER_VALUES, "config_overrides"})),
    st.text(max_size=12),
    st.sampled_from(["training", "training.seed=1", "data=", "model=/x data", "name", "options"]),
)


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make the folder of a fetched model, beside a user's data."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.csv").write_text("text,kind,label\na,b,c\n")
    (tmp_path / "model").mkdir()
    return tmp_path / "model"


def write(model: Path, task: str, options: Any, recipe: str = "r") -> None:
    document = {"recipe": recipe, "task": task, "options": options}
    (model / FILE).write_text(json.dumps(document), encoding="utf-8")


@given(st.sampled_from(sorted(RECIPES)), st.dictionaries(NAMES, VALUES, max_size=8))
@example("text-classification", {"data": "/etc/passwd", "model": "evil/model", "tokenizer": "evil"})
@example("text-classification", {"dataset_name": "evil/data", "training.seed": 3, "seed": 4})
@example("sentence-similarity", {"teacher": "evil/model", "loss": "mse"})
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_it_sets_nothing_but_fields_of_the_task(
    model: Path, task: str, options: dict[str, Any]
) -> None:
    write(model, task, options)
    words = [RECIPES[task], *MINE, *(["teacher=t"] if task == "text-distillation" else [])]
    plain, _ = trained_recipe(words, None, "somebody/else", "evaluate")
    refusal = ""
    try:
        recipe, notes = trained_recipe(words, None, "model", "evaluate")
    except FtclusterError as error:  # contradictory fields give an error that names the file
        refusal = str(error)
    if refusal:
        assert FILE in refusal
        return
    assert replace(recipe, options=plain.options, model=plain.model) == plain
    assert recipe.model == str(model)
    before, after = asdict(plain.options), asdict(recipe.options)
    changed = {name for name in after if after[name] != before[name]}
    assert changed <= options.keys() - {*recipe.spec.training_fields}
    said = "\n".join(notes)
    assert all(f"{name}=" in said for name in changed), "every difference is reported"
    assert all(printable(line) == line and "\n" not in line for line in notes)
    kept = {name for name, value in options.items() if value not in (None, []) and value == value}
    ignored = trained_fields(model).ignored
    assert kept <= {*trained_fields(model).options, *ignored}
    assert bool(ignored) == ("ignored in" in said)


@pytest.mark.parametrize("task", sorted(TASKS))
def test_what_a_training_writes_is_taken_over_whole(model: Path, task: str) -> None:
    teacher = ["teacher=t"] if task == "text-distillation" else []
    recipe = load_recipe(RECIPES[task], ["data=d", *teacher])
    (model / FILE).write_text(json.dumps(trained_document(recipe, {})))
    found = trained_fields(model)
    assert (found.recipe, found.task, found.ignored) == (recipe.name, task, ())
    plain = asdict(recipe.options)
    assert {name for name, value in plain.items() if value not in (None, ())} - {
        *recipe.spec.training_fields
    } == {*found.options}


def test_what_the_user_typed_wins_and_differences_are_reported(model: Path) -> None:
    options = {
        "data": "secrets.csv", "model": "evil/model", "max_length": 64, "label_column": "kind",
        "text_columns": ["gone"], "regression": "yes", "\x1b[2J\n": 1,
    }  # fmt: skip
    write(model, "text-classification", options, "mrpc")
    words = ["max_seq_length=32", "classify"]
    recipe, notes = trained_recipe(words, "mine.csv", "model", "evaluate")
    assert (recipe.data, recipe.model) == (str(model.parent / "mine.csv"), str(model))
    assert asdict(recipe.options) == {
        **asdict(load_recipe("classify", MINE).options), "label_column": "kind", "max_length": 32,
    }  # fmt: skip
    said = "\n".join(notes)
    assert "settings from the model's training (model/ftcluster.json): label_column=kind" in said
    assert re.search("settings that differ from its training .*: max_length=32 instead of 64", said)
    assert "text_columns=(none) instead of gone" in said
    assert r"or the value is not allowed: data, model, regression, \x1b[2J\n" in said
    glue = ["classify", "glue_task=stsb"]
    recipe, _ = trained_recipe(glue, "mine.csv", "model", "evaluate")
    assert recipe.options == load_recipe("classify", [*glue[1:], *MINE, "max_length=64",
                                                      "label_column=kind"]).options  # fmt: skip


def test_a_recipe_that_the_file_names_is_reported_with_its_data(model: Path) -> None:
    write(model, "text-classification", {}, "mrpc")
    recipe, notes = trained_recipe([], None, "model", "evaluate")
    assert recipe.name == "mrpc"
    assert notes == (
        f"using recipe mrpc, as in the model's training (model/{FILE}): data={recipe.data}",
    )  # fmt: skip
    recipe, notes = trained_recipe([], "mine.csv", "model", "evaluate")
    assert notes[0] == f"using recipe mrpc, as in the model's training (model/{FILE})"
    assert recipe.data == str(model.parent / "mine.csv")
    # a recipe of another task never applies to this model, whatever the file says
    write(model, "token-classification", {}, "mrpc")
    with pytest.raises(UsageError, match="the data are missing"):
        trained_recipe([], None, "model", "evaluate")
    recipe, notes = trained_recipe(["classify"], "mine.csv", "model", "evaluate")
    assert "was trained for token-classification" in notes[0]


@pytest.mark.parametrize(
    "document",
    [
        {"recipe": "quickstart", "task": "evil", "options": {}},
        {"recipe": ["mrpc"], "task": "text-classification", "options": {}},
        {"recipe": "mrpc", "task": "text-classification", "options": [["data", "x"]]},
        [], {},
    ],
)  # fmt: skip
def test_a_file_without_a_known_task_chooses_no_recipe(model: Path, document: Any) -> None:
    (model / FILE).write_text(json.dumps(document))
    with pytest.raises(UsageError, match=r"(?s)does not record what|task evil, .*--task FILE.py"):
        trained_recipe([], "mine.csv", "model", "predict")
    recipe, notes = trained_recipe(["classify"], "mine.csv", "model", "predict")
    assert (notes, recipe.options) == ((), load_recipe("classify", MINE).options)
