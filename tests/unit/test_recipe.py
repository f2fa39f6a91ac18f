from pathlib import Path

import pytest

from ftcluster.errors import RecipeError
from ftcluster.recipe import known_recipes, load_recipe, parse_recipe

MINIMAL = "model: m\ndata: d\ntext_columns: [a]\n"


def problems_of(text: str, *overrides: str) -> str:
    with pytest.raises(RecipeError) as caught:
        parse_recipe(text, "my.yml", overrides)
    assert caught.value.exit_code == 2
    return str(caught.value)


@pytest.mark.parametrize("name", sorted(known_recipes()))
def test_every_recipe_that_comes_along_is_valid_and_documented(name: str) -> None:
    assert load_recipe(name).name == name
    head = known_recipes()[name].read_text().split("\n---\n")[0]
    for heading in ("Needs:", "Run:", "Override:"):
        assert heading in head


def test_defaults_are_filled_in() -> None:
    recipe = parse_recipe(MINIMAL, "folder/my.yml")
    assert (recipe.name, recipe.batch_size, recipe.training.seed) == ("my", 32, 42)


def test_overrides_win_and_are_read_as_yaml() -> None:
    recipe = parse_recipe(
        MINIMAL, "my.yml", ["training.learning_rate=1e-4", "batch_size=8", "text_columns=[x, y]"]
    )
    assert recipe.training.learning_rate == pytest.approx(1e-4)
    assert recipe.batch_size == 8
    assert recipe.text_columns == ("x", "y")


@pytest.mark.parametrize(("text", "value"), [("auto", "auto"), ("true", True), ("false", False)])
def test_ipex_is_asked_for_in_one_word(text: str, value: object) -> None:
    assert parse_recipe(MINIMAL, "my.yml").training.use_ipex == "auto"
    recipe = parse_recipe(MINIMAL, "my.yml", [f"training.use_ipex={text}"])
    assert recipe.training.use_ipex is value or recipe.training.use_ipex == value


def test_unknown_recipe_lists_the_known_and_suggests_the_nearest() -> None:
    with pytest.raises(RecipeError) as caught:
        load_recipe("quikstart")
    assert "did you mean quickstart?" in str(caught.value)
    assert "mrpc" in str(caught.value)


def test_all_problems_are_reported_at_once_with_file_and_line() -> None:
    text = (
        "model: m\nbatchsize: 3\ntext_columns: nine\n"
        "training:\n  seed: -1\n  learning_rate: fast\n  epochs: 2\n"
    )
    found = problems_of(text)
    assert "6 problems" in found
    assert "my.yml:2: unknown key 'batchsize'; did you mean 'batch_size'?" in found
    assert "my.yml:3: 'text_columns' is a list of one or two column names, not 'nine'" in found
    assert "my.yml:5: 'training.seed' is not negative, not -1" in found
    assert "my.yml:6: 'training.learning_rate' is a number, not 'fast'" in found
    assert "my.yml:7: unknown key 'training.epochs'" in found
    assert "training.num_train_epochs" in found  # what is allowed
    assert "'data' is missing" in found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: [1\n", "my.yml:2: not valid YAML"),
        ("- a\n- b\n", "my.yml:1: a recipe is a mapping"),
        (MINIMAL + "model: again\n", "my.yml:4: 'model' is set twice, first at my.yml:1"),
        (MINIMAL + "precision: fp8\n", "one of auto, bf16, fp32, not 'fp8'"),
        (MINIMAL + "ranks_per_host: true\n", "'ranks_per_host' is a whole number or nothing"),
        (MINIMAL + "batch_size: 0\n", "'batch_size' is at least 1"),
        (MINIMAL + "training: 3\n", "unknown key 'training'"),
        (MINIMAL + "training:\n  warmup_ratio: 3\n", "from 0 to 1"),
        (
            MINIMAL + "training:\n  use_ipex: 1\n",
            "'training.use_ipex' is one of auto, true, false, not 1",
        ),
        (MINIMAL + "training:\n  use_ipex: [true]\n", "one of auto, true, false, not [True]"),
        (
            MINIMAL + "training:\n  ddp_backend: mpi\n",
            "'training.ddp_backend' is one of auto, gloo, ccl, not 'mpi'",
        ),
    ],
)
def test_each_kind_of_mistake(text: str, expected: str) -> None:
    assert expected in problems_of(text)


def test_a_mistake_in_an_override_names_the_override() -> None:
    assert "'bath_size=3': unknown key 'bath_size'" in problems_of(MINIMAL, "bath_size=3")
    assert "an override is written key=value" in problems_of(MINIMAL, "fast")


def test_a_recipe_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="does not exist"):
        load_recipe(str(tmp_path / "none.yml"))
