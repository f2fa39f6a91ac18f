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
        """Return the document that `--json` prints."""

    def lines(self) -> list[str]:
        """Return the result as text."""


def print_result(options: argparse.Namespace, result: Printable) -> None:
    """Print the result of a command, as JSON or as text that fits a terminal."""
    if options.json:
        print(json.dumps(result.document()))
    else:
        print_lines(result.lines())


class PrintablePlan(Protocol):
    """The plan of an operation, which --dry-run prints."""

    def document(self) -> Any:
        """Return the document that `--json` prints."""

    def lines(self) -> Sequence[Text | str]:
        """Return the plan as text, without the commands."""

    def commands(self) -> str:
        """Return the plan as shell commands."""


def print_plan(options: argparse.Namespace, plan: PrintablePlan) -> None:
    """Print a plan as text, or in the form that `--json` or `--commands` requests."""
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
    # a line break in a name from elsewhere must not imitate a line of ftcluster's own output
    below = [line if line.startswith(" ") or not line else f"  {line}" for line in others]
    print_lines([Text.assemble((label, "bold red"), one_line(first)), *below], sys.stderr)
