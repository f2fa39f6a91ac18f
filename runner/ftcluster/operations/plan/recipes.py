"""List and show the recipes that come with ftcluster, and the fields that a recipe can set."""

import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path

from ftcluster.operations.result import Result
from ftcluster.recipe import recipe as files
from ftcluster.recipe.recipe import all_fields, find_recipe, load_recipe, recipe_text, schema_of
from ftcluster.recipe.schema import in_recipe
from ftcluster_common.recipe import Recipe

FIELDS_HEAD = ("field", "default", "value", "meaning")
RECIPE_HEAD = ("field", "in the recipe", "default", "value", "meaning")
CLAUSE = re.compile(r"[.:;] |\.$")


@dataclass(frozen=True)
class RecipeEntry:
    """A recipe, with the description at the beginning of its file."""

    name: str
    task: str
    model: str
    data: str
    description: str
    file: str

    @property
    def short(self) -> str:
        """The first clause of the description."""
        return CLAUSE.split(self.description)[0]

    def document(self) -> dict[str, str]:
        """Return the entry of `recipes --json`."""
        return asdict(self)


def known_recipes() -> tuple[str, ...]:
    """Return the names of the recipes that come with ftcluster."""
    return tuple(files.known_recipes())


def list_recipes() -> tuple[RecipeEntry, ...]:
    """Return the recipes that come with ftcluster."""
    return tuple(_entry(path) for path in files.known_recipes().values())


def show_recipe(name: str) -> tuple[RecipeEntry, str]:
    """Return the entry and the text of the recipe with this name or file.

    Raises:
        RecipeError: the recipe is unknown or not valid.
    """
    path = find_recipe(name)
    return _entry(path), recipe_text(path)


def all_rows() -> list[tuple[str, ...]]:
    """Return a row for each field of all tasks: name, default, allowed values, description."""
    return [
        (key.name, key.default_text, key.allowed, key.description) for key in all_fields().values()
    ]


def rows_of(name: str) -> list[tuple[str, ...]]:
    """Return a row for each field of a recipe: name, value, default, allowed values, description.

    Raises:
        RecipeError: the recipe is unknown or not valid.
    """
    recipe = load_recipe(name)
    rows: list[tuple[str, ...]] = []
    values = {**vars(recipe), **vars(recipe.options)}
    values |= {f"training.{key}": value for key, value in vars(recipe.training).items()}
    for key in schema_of(recipe.task).values():
        value = in_recipe(values[key.name]) if key.name in values else ""  # an alias
        rows.append((key.name, value, key.default_text, key.allowed, key.description))
    return rows


def recipe_schema() -> Result:
    """Return the JSON Schema of recipe files."""
    schema = files.json_schema()
    return Result(schema, tuple(json.dumps(schema, indent=1).split("\n")))


def _paths(recipe: Recipe) -> str:
    return ", ".join(data_set.path for data_set in recipe.data_sets)


def _entry(path: Path) -> RecipeEntry:
    recipe, about = load_recipe(str(path)), []
    for line in recipe_text(path).splitlines():
        text = line.removeprefix("#").strip()
        if not line.startswith("#") or not text or text.startswith("Needs:"):
            break
        about.append(text)
    description = " ".join(about).rstrip(":")
    return RecipeEntry(
        recipe.name, recipe.task, recipe.model, _paths(recipe), description, str(path)
    )
