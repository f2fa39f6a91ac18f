"""The output of results, plans and errors."""

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any, Protocol

from rich.text import Text

from ftcluster.errors import FtclusterError, Interrupted
from ftcluster.text.terminal import one_line, print_lines


class Printable(Protocol):
    """A result of an operation."""

    def document(self) -> Any:
        """What `--json` prints."""

    def lines(self) -> list[str]:
        """The result as text."""


def print_result(options: argparse.Namespace, result: Printable) -> None:
    """Print the result of a command, as JSON or as text that fits a terminal."""
    if options.json:
        print(json.dumps(result.document()))
    else:
        print_lines(result.lines())


class PrintablePlan(Protocol):
    """What an operation would run."""

    def document(self) -> Any:
        """What `--json` prints."""

    def lines(self) -> Sequence[Text | str]:
        """The plan as text, without the commands."""

    def commands(self) -> str:
        """The plan as commands of a shell."""


def print_plan(options: argparse.Namespace, plan: PrintablePlan) -> None:
    """Print what would run, as `--json` or `--commands` ask for it."""
    if options.json:
        print(json.dumps(plan.document()))
    elif options.commands:
        print(plan.commands())
    else:
        print_lines(plan.lines())


def say_error(error: FtclusterError) -> None:
    """Print an error to stderr."""
    label = "" if isinstance(error, Interrupted) else "error: "
    first, *others = str(error).split("\n")
    # a further line that another one's name has made must not look like one of this program's
    below = [line if line.startswith(" ") or not line else f"  {line}" for line in others]
    print_lines([Text.assemble((label, "bold red"), one_line(first)), *below], sys.stderr)
