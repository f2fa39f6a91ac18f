"""Recipes, fields and rows on the pages about data are valid."""

import json
import re

import pytest
import yaml

from ftcluster.recipe.recipe import known_recipes, load_recipe, parse_recipe
from ftcluster_common.tasks.registry import TASKS
from tests.programs import ROOT
from tests.unit.commands import Command
from tests.unit.documented import NOT_RUN, SHOWN

ABOUT_RECIPES = ("train", "data", "evaluate", "predict", "plan", "tune")
WITH_FIELDS = [
    command
    for command in SHOWN
    if command.words[0] == "ftcluster"
    and len(command.words) > 2
    and command.words[1] in ABOUT_RECIPES
    and command.words[2] in known_recipes()
    and "key=value" not in command.text
    and "--metrics" not in command.words  # test_own_code.py tests names of a user's own metrics
    and not set(command.kinds) & set(NOT_RUN["an example of what is refused"])
]
OWN_DATA = (ROOT / "docs/own-data.md").read_text(encoding="utf-8")
# for each row of the page, the tasks that read it
ROWS = [
    ("token-classification",),
    ("token-classification",),
    ("instruction-tuning",),
    ("instruction-tuning",),
    ("preference-tuning",),
    ("sentence-similarity", "text-ranking"),
]


@pytest.mark.parametrize("command", WITH_FIELDS, ids=lambda command: command.where)
def test_fields_of_the_pages_commands_are_fields_of_their_recipe(command: Command) -> None:
    words = command.words[3:]
    fields = [word for word in words if re.match(r"[a-z_.]+=", word)]
    load_recipe(command.words[2], fields)


def test_a_recipe_of_ones_own_is_as_the_page_has_it() -> None:
    page = (ROOT / "docs/recipes.md").read_text(encoding="utf-8")
    [text] = re.findall(r"^```yaml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    recipe = parse_recipe(text, "my.yml")
    assert recipe.data == yaml.safe_load(text)["data"]
    assert recipe.training.num_train_epochs == 2


def test_rows_of_the_page_are_taken() -> None:
    rows = [json.loads(line) for line in re.findall(r"^ {4}(\{.+\})$", OWN_DATA, re.MULTILINE)]
    assert len(rows) == len(ROWS)
    for row, tasks in zip(rows, ROWS, strict=True):
        for task in tasks:
            spec = TASKS[task]
            assert spec.row_check(spec.fields(), True, list(row))(row) == "", (task, row)


def test_each_task_has_a_command_of_the_page() -> None:
    recipes = set(re.findall(r"`(?:ftcluster )?train ([\w-]+)", OWN_DATA))
    needed = {spec.recipe for name, spec in TASKS.items() if name != "text-distillation"}
    assert needed <= recipes
