"""`ftcluster recipes [NAME]`: lists recipes and their fields, and shows one."""

import argparse
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.text import Text

from ftcluster.cli.arguments import add_output, print_result
from ftcluster.errors import UsageError
from ftcluster.recipe.recipe import (
    all_fields,
    find_recipe,
    known_recipes,
    load_recipe,
    recipe_text,
    schema_of,
)
from ftcluster.text.table import aligned
from ftcluster.text.terminal import print_lines

HEAD = ("recipe", "what it does")
FIELDS_HEAD = ("field", "default", "value")
NEXT = (
    "",
    "show one: ftcluster recipes NAME",
    "train it: ftcluster train NAME",
    "what it can set: ftcluster recipes NAME --fields",
)
CLAUSE = re.compile(r"[.:;] |\.$")


def add_parser(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "recipes",
        help="list the recipes, or show one",
        description="Lists the recipes that come with ftcluster, shows one (a name or a file of "
        "yours), or lists the fields that a recipe can have.",
        usage="ftcluster recipes [NAME] [options]",
    )
    parser.add_argument("words", nargs="*", metavar="NAME", help="a recipe")
    parser.add_argument(
        "--fields",
        action="store_true",
        help="list the fields, with their defaults: of all tasks, or of the recipe's",
    )
    add_output(parser, verbose="")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    if len(options.words) > 1:
        raise UsageError(f"one recipe at a time, not {', '.join(options.words)}")
    name = options.words[0] if options.words else ""
    if options.fields:
        fields = schema_of(load_recipe(name).task) if name else all_fields()
        rows = [(key.name, key.default_text, key.meaning) for key in fields.values()]
        document = [dict(zip(FIELDS_HEAD, row, strict=True)) for row in rows]
        show(options, document, [FIELDS_HEAD, *rows])
    elif name:
        path = find_recipe(name)
        text = recipe_text(path)
        print_result(options, {**entry(path), "text": text}, text.rstrip("\n"))
    else:
        found = [entry(path) for path in known_recipes().values()]
        short = [(one["name"], CLAUSE.split(one["description"])[0]) for one in found]
        show(options, found, [HEAD, *short], NEXT)
    return 0


def show(
    options: argparse.Namespace,
    document: object,
    rows: Sequence[tuple[str, ...]],
    more: Sequence[str] = (),
) -> None:
    """Print a table whose last column continues below itself, or its document for --json."""
    if options.json:
        print(json.dumps(document))
        return
    first, *others = aligned(rows)
    print_lines([Text(first, "bold"), *others], indent=first.index(rows[0][-1]))
    print_lines(more)


def entry(path: Path) -> dict[str, str]:
    """What a recipe's file says of itself."""
    recipe = load_recipe(str(path))
    lines = recipe_text(path).splitlines()
    about = []
    for line in lines:
        words = line.removeprefix("#").strip()
        if not line.startswith("#") or not words or words.startswith("Needs:"):
            break
        about.append(words)
    return {
        "name": recipe.name,
        "task": recipe.task,
        "model": recipe.model,
        "data": recipe.data,
        "description": " ".join(about).rstrip(":"),
        "file": str(path),
    }
