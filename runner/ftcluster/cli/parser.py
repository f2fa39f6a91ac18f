"""Parsers that report errors as exceptions and print help with examples and command groups."""

import argparse
import re
from collections.abc import Sequence
from typing import Any, NoReturn

from rich.text import Text

from ftcluster.cli.help import grouped
from ftcluster.errors import UsageError
from ftcluster.text.table import aligned
from ftcluster.text.terminal import print_lines

UNKNOWN_WORD = re.compile(r"argument WHAT: invalid choice: (.*) \(choose from (.*)\)")


def _typed(value: Any) -> str:
    """Return an option's value as a user types it."""
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


class StoreOnce(argparse.Action):
    """An action for an option that may be set only once; a second value is an error."""

    def __call__(self, _parser: Any, namespace: argparse.Namespace, values: Any, *_: Any) -> None:
        """Store the value.

        Raises:
            argparse.ArgumentError: the option is already set.
        """
        stored: dict[str, Any] = namespace.__dict__.setdefault("_stored_once", {})
        if self.option_strings and self.dest in stored:
            raise argparse.ArgumentError(
                self, f"set twice, to {_typed(stored[self.dest])} and {_typed(values)}; set it once"
            )
        stored[self.dest] = values
        self.store(namespace, values)

    def store(self, namespace: argparse.Namespace, values: Any) -> None:
        """Store the value under the option's name."""
        setattr(namespace, self.dest, values)


class ListOnce(StoreOnce):
    """An action like StoreOnce, for options whose value is a list with at most one element."""

    def store(self, namespace: argparse.Namespace, values: Any) -> None:
        """Store a list with the value."""
        setattr(namespace, self.dest, [values])


class Parser(argparse.ArgumentParser):
    """A parser that raises a UsageError with the usage of the command.

    Attributes:
        more: lines at the end of the help.
    """

    more: Sequence[str] = ()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.register("action", None, StoreOnce)
        self.register("action", "store", StoreOnce)

    def format_help(self) -> str:
        """Return the help with the lines of `more`."""
        return "\n".join([super().format_help().rstrip("\n"), *self.more, ""])

    def print_help(self, file: Any = None) -> None:
        """Print the help, with headings in bold on a terminal."""
        lines = self.format_help().rstrip("\n").split("\n")
        heading = re.compile(r"\S.*:$")
        print_lines([Text(line, "bold" if heading.match(line) else "") for line in lines], file)

    def error(self, message: str) -> NoReturn:
        """Raise a UsageError."""
        if match := UNKNOWN_WORD.fullmatch(message):
            choices = match[2].replace("'", "")
            message = f"{self.prog} has no subcommand {match[1]}; choose from {choices}"
        raise UsageError(message, self.usage_line())

    def usage_line(self) -> str:
        """Return the command's usage as a single line."""
        return " ".join(self.format_usage().split())


def is_flag(word: str) -> bool:
    """Return True if an argument is an option; -1, for example, is a value."""
    return bool(re.match(r"--?[A-Za-z]", word))


class Commands:
    """The commands with their summaries, kept here to list the commands in groups.

    Args:
        action: argparse action that the commands are added to.
    """

    def __init__(self, action: Any) -> None:
        self._action = action
        self.parsers: dict[str, Parser] = {}
        self.summaries: dict[str, str] = {}

    def add_parser(self, name: str, **settings: Any) -> Parser:
        """Add a command, like `add_parser` of argparse."""
        self.summaries[name] = settings["help"]
        self.parsers[name] = self._action.add_parser(name, **settings)
        return self.parsers[name]


def add_kinds(parser: Parser, doing: str) -> Commands:
    """Allow subcommands, such as `bench allreduce`; without a subcommand, an error lists them.

    Args:
        doing: verb for the error "name what to DOING".
    """
    kinds = Commands(parser.add_subparsers(metavar="WHAT"))

    def list_kinds(_: argparse.Namespace) -> NoReturn:
        rows = [(f"{parser.prog} {name}", summary) for name, summary in kinds.summaries.items()]
        raise UsageError(f"name what to {doing}", "\n  ".join(aligned(rows)))

    parser.set_defaults(run=list_kinds)
    return kinds


class MainParser(Parser):
    """The parser with all commands, whose help lists them in groups."""

    commands: Commands

    def format_help(self) -> str:
        """Return the program's purpose and its commands."""
        lines = [self.usage_line(), "", *(self.description or "").split("\n")]
        lines += [
            *grouped(self.commands.summaries),
            "",
            "help for a command: ftcluster COMMAND --help",
            "",
        ]
        return "\n".join(lines)
