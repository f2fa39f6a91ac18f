"""The recipes that come with ftcluster, and the fields that a recipe can have."""

import re
from dataclasses import asdict, dataclass
from pathlib import Path

from ftcluster.recipe import recipe as files
from ftcluster.recipe.recipe import all_fields, find_recipe, load_recipe, recipe_text, schema_of

FIELDS_HEAD = ("field", "default", "value")
CLAUSE = re.compile(r"[.:;] |\.$")


@dataclass(frozen=True)
class RecipeEntry:
    """What a recipe's file says of itself."""

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
        """The entry of `recipes --json`."""
        return asdict(self)


def known_recipes() -> tuple[str, ...]:
    """The names of the recipes that come with ftcluster."""
    return tuple(files.known_recipes())


def list_recipes() -> tuple[RecipeEntry, ...]:
    """The recipes that come with ftcluster."""
    return tuple(_entry(path) for path in files.known_recipes().values())


def show_recipe(name: str) -> tuple[RecipeEntry, str]:
    """A recipe, a known one or a file, and its text.

    Raises:
        RecipeError: it is unknown or not valid.
    """
    path = find_recipe(name)
    return _entry(path), recipe_text(path)


def fields_of(name: str = "") -> list[tuple[str, str, str]]:
    """Name, default and meaning of the fields of a recipe's task; "": of all tasks.

    Raises:
        RecipeError: the recipe is unknown or not valid.
    """
    fields = schema_of(load_recipe(name).task) if name else all_fields()
    return [(key.name, key.default_text, key.meaning) for key in fields.values()]


def _entry(path: Path) -> RecipeEntry:
    recipe, about = load_recipe(str(path)), []
    for line in recipe_text(path).splitlines():
        words = line.removeprefix("#").strip()
        if not line.startswith("#") or not words or words.startswith("Needs:"):
            break
        about.append(words)
    description = " ".join(about).rstrip(":")
    return RecipeEntry(recipe.name, recipe.task, recipe.model, recipe.data, description, str(path))
