"""Errors with messages for users; other exceptions are bugs in ftcluster."""

from collections.abc import Sequence
from typing import Any


class FtclusterError(Exception):
    """An operation failed; the command ends with exit code 1.

    Args:
        message: description of the problem, with the host or the file and line.
        hint: advice to the user, or "".
        details: further keys of the JSON document that `--json` prints.
    """

    exit_code = 1
    state = "failed"

    def __init__(self, message: str, hint: str = "", details: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.details = details or {}

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON document that `--json` prints for a failed command."""
        return {**self.details, "state": self.state, "error": self.message, "hint": self.hint}

    def __str__(self) -> str:
        return f"{self.message}\n  {self.hint}" if self.hint else self.message


class UsageError(FtclusterError):
    """The command line is wrong; exit code 2."""

    exit_code = 2


class InventoryError(FtclusterError):
    """The inventory cannot be read, or names no host."""


class RecipeError(UsageError):
    """A recipe is unknown or not valid."""


class StacksError(FtclusterError):
    """The file that defines the stacks cannot be read or is damaged."""


class InputError(FtclusterError):
    """A data or model folder is not valid for the task."""


def raise_together(problems: Sequence[str], what: str, hint: str) -> None:
    """Raise an InputError with all problems, if there are any."""
    if problems:
        raise InputError(f"{what}\n  " + "\n  ".join(problems), hint)


class PlanError(FtclusterError):
    """The recipe cannot be launched on these hosts."""


class ClusterChanged(FtclusterError):
    """The plan was made for an older state of the cluster; the new state has been saved."""


class Interrupted(FtclusterError):
    """The user pressed Ctrl-C, or the process received a signal to end."""

    exit_code = 130
    state = "stopped"


class StoppedElsewhere(Interrupted):
    """The followed run was stopped by another command, or by SIGTERM on a host."""

    exit_code = 143


class Detached(Interrupted):
    """A signal ended the command while it followed a run; the run continues.

    Args:
        run: id of the run.
        signal: number of the signal; the exit code is 128 plus this number.
    """

    state = "running"

    def __init__(self, run: str, signal: int, details: dict[str, Any]) -> None:
        message = f"detached; the run continues: ftcluster attach {run}"
        super().__init__(message, f"to stop it: ftcluster stop {run}", details)
        self.exit_code = 128 + signal
