"""Values from a command line are read exactly, or refused."""

import json
import re
import shlex
import typing
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from ftcluster.errors import RecipeError
from ftcluster.recipe.recipe import known_recipes, load_recipe, parse_recipe
from ftcluster.recipe.yaml_loader import read_value
from ftcluster_common.data.numbers import is_decimal, read_decimal
from ftcluster_common.user_code import code_file, declared_metrics
from tests.programs import ROOT
from tests.unit.test_documented_commands import SHOWN

# invalid numbers of JSONTestSuite, and forms that Python, C or YAML 1.1 accept
NOT_DECIMAL = (
    "1_000", "0x1F", "0o17", "0b1", "inf", "-inf", "nan", "Infinity", ".inf", ".nan", "1:30", "1e",
    "e5", "--1", "1e5_0", "1,5", "1 000", "\uff11\uff16", "\u0661", "\u00bd", "1e999", "", "0x1p3",
)  # fmt: skip


@pytest.mark.parametrize("text", NOT_DECIMAL)
def test_only_decimal_digits_make_a_number(text: str) -> None:
    assert read_decimal(text) is None
    with pytest.raises(RecipeError, match=r"batch_size"):
        load_recipe("classify", [f"batch_size={text}"])
    with pytest.raises(RecipeError, match=r"learning_rate"):
        load_recipe("classify", [f"learning_rate={text}"])


@given(st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(10**18), 10**18))
def test_numbers_as_json_writes_them_are_read(number: float) -> None:
    text = json.dumps(number)
    assert is_decimal(text)
    assert read_decimal(text) == number
    assert read_value(text) == number  # the same in a recipe file


@given(st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), min_size=1))
def test_a_text_is_what_was_typed(text: str) -> None:
    quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "\"'"
    if quoted or text.strip() in ("null", "~"):
        return
    recipe = load_recipe("embed", [f"query_prompt={text}"])
    assert typing.cast(Any, recipe.options).query_prompt == text


@pytest.mark.parametrize(
    ("recipe", "override", "field", "value"),
    [
        ("embed", "query_prompt=query: ", "query_prompt", "query: "),
        ("embed", 'query_prompt="query: "', "query_prompt", "query: "),
        ("embed", "text_prompt=# x", "text_prompt", "# x"),
        ("embed", "query_prompt=yes", "query_prompt", "yes"),
        ("embed", "query_prompt=1e3", "query_prompt", "1e3"),
        ("embed", "query_column=Query ", "query_column", "Query "),
        ("embed", "matryoshka_dims=384,256,128,64", "matryoshka_dims", (384, 256, 128, 64)),
        ("embed", "matryoshka_dims=[384, 128]", "matryoshka_dims", (384, 128)),
        ("embed", "matryoshka_dims=64", "matryoshka_dims", (64,)),
        ("seq2seq", "source_prefix=translate English to German: ", "source_prefix",
         "translate English to German: "),
        ("classify", "text_columns=a,b", "text_columns", ("a", "b")),
        ("classify", "text_columns=[yes, 1]", "text_columns", ("yes", "1")),
        ("classify", "text_columns='city, state',it's", "text_columns", ("city, state", "it's")),
        ("classify", "text_columns=[draft] title", "text_columns", ("[draft] title",)),
        ("classify", "class_weights={good: 2}", "class_weights", {"good": 2}),
    ],
)  # fmt: skip
def test_the_fields_type_decides(recipe: str, override: str, field: str, value: Any) -> None:
    assert getattr(load_recipe(recipe, [override]).options, field) == value


def test_a_file_is_not_blamed_for_what_was_typed() -> None:
    with pytest.raises(RecipeError) as caught:
        load_recipe("classify", ["batch_size=1_6"])
    assert str(caught.value).splitlines()[0] == "1 problem in the overrides of recipe classify"
    assert ".yml" not in str(caught.value)


@pytest.mark.parametrize(
    ("recipe", "override", "advice"),
    [
        ("classify", "learning_rate=", "learning_rate=null restores the default"),
        (
            "classify",
            "label_column=",
            "remove label_column, and 'label_column=\"\"'",
        ),
        ("embed", "query_prompt=", "query_prompt=null unsets it, and 'query_prompt=\"\"'"),
        ("embed", "matryoshka_dims=", "remove matryoshka_dims"),
    ],
)
def test_advice_for_a_missing_value_is_taken_when_followed(
    recipe: str, override: str, advice: str
) -> None:
    with pytest.raises(RecipeError, match=re.escape(advice)):
        load_recipe(recipe, [override])
    for word in re.findall(r"\w+=null", advice):
        load_recipe(recipe, [word])
    for words in re.findall(r"'(query_prompt=.*)'", advice):
        assert typing.cast(Any, load_recipe(recipe, [words]).options).query_prompt == ""


@pytest.mark.parametrize(
    "overrides",
    [
        ("batch_size=16", "batch_size=32"),
        ("seed=1", "training.seed=1"),
        ("bf16=true", "precision=fp32"),
    ],
)
def test_a_field_that_is_set_twice_is_refused(overrides: tuple[str, str]) -> None:
    with pytest.raises(RecipeError, match="set twice"):
        load_recipe("classify", overrides)
    # a group with precedence over the other
    assert load_recipe("classify", overrides[:1], overrides[1:])


def test_a_files_values_and_a_command_lines_mean_the_same() -> None:
    plain = yaml.safe_load(known_recipes()["mrpc"].read_text(encoding="utf-8"))
    words = [f"{key}={value}" for key, value in plain["training"].items()]
    assert load_recipe("mrpc", words) == load_recipe("mrpc")


def recipes_commands() -> list[str]:
    """Return the `ftcluster` commands in the header comments of each recipe file."""
    commands = []
    for path in known_recipes().values():
        head = path.read_text(encoding="utf-8").partition("\n\n")[0]
        joined = re.sub(r"\\\n# *", " ", head)
        commands += re.findall(r"(ftcluster (?:train|data|plan) [^\n]*)", joined)
    return commands


# a page uses this metric to choose the best model
EXAMPLE_METRICS = declared_metrics(
    code_file("worst_class.py", (ROOT / "examples/worst_class.py").read_text(encoding="utf-8"))
)
TAKE_RECIPES = (["ftcluster", "train"], ["ftcluster", "data"], ["ftcluster", "plan"])


def recipes_and_fields() -> set[tuple[str, ...]]:
    """Yield each shipped recipe with each `key=value` that pages and recipes show for it."""
    shown = [one.text for one in SHOWN if one.words[:2] in TAKE_RECIPES]
    found = set()
    refused = "training.lr=1e-4"  # a page shows the error for this field
    for command in [*recipes_commands(), *shown]:
        words = shlex.split(re.sub(r"--(tag|env) \S+", "", command), comments=True)[2:]
        fields = [word for word in words if re.fullmatch(r"[a-z_.]+=(?!VALUE|\.\.\.).+", word)]
        recipe = words[0] if words and words[0] in known_recipes() else "quickstart"
        found.add((recipe, *(field for field in fields if field != refused)))
    return found


@pytest.mark.parametrize("words", sorted(recipes_and_fields()), ids=" ".join)
def test_recipes_take_the_values_that_pages_and_recipes_show(words: tuple[str, ...]) -> None:
    load_recipe(words[0], words[1:], metrics=EXAMPLE_METRICS)


@pytest.mark.parametrize("task", ["token-classification", '"token-classification"'])
def test_the_task_that_is_typed_decides_which_fields_there_are(task: str) -> None:
    recipe = parse_recipe("model: m\ndata: d\n", "r.yml", [f"task={task}", "tags_column=t"])
    assert recipe.task == "token-classification"
