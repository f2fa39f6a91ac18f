"""Builds the parser of all commands, and parses a command line."""

import argparse
import difflib
from collections.abc import Sequence
from importlib import import_module

from ftcluster.cli.help import GROUPS, example_lines
from ftcluster.cli.parser import Commands, MainParser, Parser, is_flag
from ftcluster.errors import UsageError
from ftcluster.text.printable import is_unicode
from ftcluster_common import __version__

COMMANDS = tuple(name for names in GROUPS.values() for name in names)
OF_ALL = ("completion",)  # commands that need the parsers of all commands


def build_parser(names: Sequence[str] = COMMANDS) -> MainParser:
    """Return the parser with these commands; each command's module adds its own arguments."""
    parser = MainParser(
        prog="ftcluster",
        description="From an Ansible inventory of bare Xeon hosts to a fine-tuned model.",
        usage="ftcluster COMMAND [options]",
    )
    parser.add_argument("--version", action="version", version=f"ftcluster {__version__}")
    action = parser.add_subparsers(metavar="COMMAND", parser_class=Parser, prog="ftcluster")
    parser.commands = Commands(action)
    for name in names:
        import_module(f"ftcluster.cli.{name.replace('-', '_')}").add_parser(parser.commands)
    for name, command in parser.commands.parsers.items():
        command.set_defaults(parser=command, main_parser=parser)
        recipes = _recipes() if command.get_default("takes_recipe") else ()
        command.more = example_lines(name, recipes)
    return parser


def read_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse a command line and return its options.

    Raises:
        UsageError: the command line is wrong; the hint shows the usage of the command.
    """
    for word in arguments:
        if not is_unicode(word):
            raise UsageError(f"argument is not valid UTF-8: {word!a}")
    # importing all commands takes longer than most commands run
    alone = arguments and arguments[0] in COMMANDS and arguments[0] not in OF_ALL
    parser = build_parser((arguments[0],) if alone else COMMANDS)
    _check_command(arguments)
    options, rest = parser.parse_known_args(arguments)
    unknown = [word for word in rest if is_flag(word)]
    if unknown:
        from ftcluster.cli.usage import with_overrides  # slow: imports all recipe code

        takes_recipe = getattr(options, "takes_recipe", False)
        arguments = with_overrides(arguments, unknown, takes_recipe, options.parser)
        options, rest = parser.parse_known_args(arguments)
    # argparse does not accept positional arguments after an option, so they are added here
    options.words = [*getattr(options, "words", []), *rest]
    return options


def _recipes() -> tuple[str, ...]:
    from ftcluster.operations.plan.recipes import (
        known_recipes,  # imported only by commands with recipes
    )

    return known_recipes()


def _check_command(arguments: Sequence[str]) -> None:
    word = next((word for word in arguments if not word.startswith("-")), "")
    if word and word not in COMMANDS:
        close = difflib.get_close_matches(word, COMMANDS, n=1)
        guess = f"did you mean ftcluster {close[0]}? " if close else ""
        raise UsageError(f"there is no command '{word}'", f"{guess}all commands: ftcluster --help")
