"""`ftcluster recipes [NAME]`: lists recipes and their fields, or shows a recipe."""

import argparse
import json
from collections.abc import Sequence
from typing import Any

from rich.text import Text

from ftcluster.cli.arguments import add_output
from ftcluster.cli.output import print_result
from ftcluster.errors import UsageError
from ftcluster.operations.plan.recipes import (
    FIELDS_HEAD,
    RECIPE_HEAD,
    all_rows,
    list_recipes,
    recipe_schema,
    rows_of,
    show_recipe,
)
from ftcluster.operations.result import Result
from ftcluster.text.table import aligned
from ftcluster.text.terminal import print_lines

HEAD = ("recipe", "purpose")
NEXT = (
    "",
    "show a recipe: ftcluster recipes NAME",
    "train with it: ftcluster train NAME",
    "list its fields: ftcluster recipes NAME --fields",
)


def add_parser(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "recipes",
        help="list the recipes, or show one",
        description="Lists the recipes that come with ftcluster, shows a recipe (by name, or a "
        "file of yours), or lists the fields that a recipe can have.",
        usage="ftcluster recipes [NAME] [options]",
    )
    parser.add_argument("words", nargs="*", metavar="NAME", help="a recipe")
    parser.add_argument(
        "--fields",
        action="store_true",
        help="list the fields of all tasks, or of the recipe: defaults, allowed values and meaning",
    )
    parser.add_argument(
        "--schema", action="store_true", help="print a JSON schema of recipes, for editors"
    )
    add_output(parser, verbose="")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the command and return the exit code."""
    if len(options.words) > 1:
        raise UsageError(f"name one recipe at a time, got {', '.join(options.words)}")
    name = options.words[0] if options.words else ""
    if options.fields:
        head, rows = (RECIPE_HEAD, rows_of(name)) if name else (FIELDS_HEAD, all_rows())
        document = [dict(zip(head, row, strict=True)) for row in rows]
        show(options, document, [_with_last_joined(row) for row in (head, *rows)])
    elif options.schema:
        print_result(options, recipe_schema())
    elif name:
        entry, text = show_recipe(name)
        shown = tuple(text.rstrip("\n").split("\n"))
        print_result(options, Result({**entry.document(), "text": text}, shown))
    else:
        entries = list_recipes()
        short = [(entry.name, entry.short) for entry in entries]
        show(options, [entry.document() for entry in entries], [HEAD, *short], NEXT)
    return 0


def _with_last_joined(row: tuple[str, ...]) -> tuple[str, ...]:
    """Join the last two cells of a row, the allowed values and the meaning, into one cell."""
    *others, value, meaning = row
    return (*others, f"{value}: {meaning}" if meaning else value)


def show(
    options: argparse.Namespace,
    document: object,
    rows: Sequence[tuple[str, ...]],
    more: Sequence[str] = (),
) -> None:
    """Print a table whose last column wraps within the column; with --json, print the document."""
    if options.json:
        print(json.dumps(document))
        return
    first, *others = aligned(rows)
    print_lines([Text(first, "bold"), *others], indent=first.index(rows[0][-1]))
    print_lines(more)
