"""What can go wrong through no fault of ftcluster, as exceptions with a message for a person."""

from collections.abc import Sequence
from typing import Any


class FtclusterError(Exception):
    """Something failed; the command ends with exit code 1.

    Args:
        message: what is wrong, and on which host or in which file and line.
        hint: what to do about it, if there is something to do.
        details: what is known all the same, for `--json`.
    """

    exit_code = 1
    state = "failed"

    def __init__(self, message: str, hint: str = "", details: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.details = details or {}

    def to_dict(self) -> dict[str, Any]:
        """The result of a command that failed, for `--json`."""
        return {**self.details, "state": self.state, "error": self.message, "hint": self.hint}

    def __str__(self) -> str:
        return f"{self.message}\n  {self.hint}" if self.hint else self.message


class UsageError(FtclusterError):
    """The command was called with something it does not take; exit code 2."""

    exit_code = 2


class InventoryError(FtclusterError):
    """The inventory cannot be read, or names no host."""


class RecipeError(UsageError):
    """A recipe is unknown or says something that a recipe cannot say."""


class StacksError(FtclusterError):
    """The file of the stacks cannot be read or is damaged."""


class InputError(FtclusterError):
    """A data or model folder is not what the task needs."""


def raise_together(problems: Sequence[str], what: str, hint: str) -> None:
    """Raise one InputError of all problems, if there are any."""
    if problems:
        raise InputError(f"{what}\n  " + "\n  ".join(problems), hint)


class PlanError(FtclusterError):
    """No launch is possible on these hosts with this recipe."""


class Interrupted(FtclusterError):
    """The user pressed Ctrl-C, or the process was asked to end."""

    exit_code = 130
    state = "stopped"
