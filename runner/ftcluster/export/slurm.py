"""Writes the batch script with which Slurm trains a recipe. Pure functions only."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ftcluster.text.comments import comments
from ftcluster.text.shell_words import shell_word

SAVE_SECONDS = 90  # time for saving the last checkpoint
# seconds between Slurm's signal and the time limit; Slurm checks the limit only every minute
SIGNAL_SECONDS = SAVE_SECONDS + 30

ABOUT = "ftcluster export slurm; ftcluster's docs/slurm.md explains the setup of the nodes"
PROGRAM = "ftcluster"  # without a path, so that the script works for other users too
MISSING = f"error: {PROGRAM} is not on this job's PATH; add its folder to PATH, then sbatch again"
PATH_CHECK = f'command -v {PROGRAM} > /dev/null || {{ echo "{MISSING}" >&2; exit 127; }}'
OPTION = re.compile(r"--[a-z-]+=[\w.,:+-]+", re.ASCII)  # sbatch would split any other string


@dataclass(frozen=True)
class BatchJob:
    """The name, nodes and command of a batch job.

    Attributes:
        name: name of the job and of its log.
        options: further options of sbatch, such as "--time=4:00:00".
        arguments: arguments of ftcluster, beginning with "train".
    """

    name: str
    nodes: int
    options: tuple[str, ...]
    arguments: tuple[str, ...]


def batch_script(job: BatchJob) -> str:
    """Return the batch script, with a comment that explains each line.

    Raises:
        ValueError: the name or an option has a form that sbatch could read as several options.
    """
    for option in (f"--job-name={job.name}", *job.options):
        if not OPTION.fullmatch(option):
            raise ValueError(f"{option!r} is not a single option of sbatch")
    options = [
        (f"--job-name={job.name}", ""),
        (f"--nodes={job.nodes}", ""),
        *((option, "") for option in job.options),
        ("--ntasks-per-node=1", "mpirun starts the ranks; the plan decides how many"),
        ("--exclusive", "the job gets all cores of each node"),
        ("--mem=0", "the job gets all memory of each node"),
        (
            f"--signal=B:TERM@{SIGNAL_SECONDS}",
            "signal before the time limit, so that ftcluster saves a last checkpoint",
        ),
        (
            "--requeue",
            "a requeued job continues from this checkpoint, also after the loss of a node",
        ),
        ("--open-mode=append", "a requeued job appends to the log"),
        (f"--output={job.name}-%j.log", ""),
    ]
    width = max(len(option) for option, _ in options)
    lines = [
        f"#SBATCH {option:{width}}  {comments([why])[0]}" if why else f"#SBATCH {option}"
        for option, why in options
    ]
    flags = ("--requeue", f"--grace-seconds={SAVE_SECONDS}")
    return "\n".join(
        (
            "#!/bin/bash",
            *comments([ABOUT]),
            *lines,
            "",
            *comments(
                ["the job inherits PATH from sbatch; if needed, add commands like `module load`"]
            ),
            PATH_CHECK,
            *comments(["exec, because a shell would not forward Slurm's signal to ftcluster"]),
            f"exec {_wrapped((PROGRAM, *job.arguments, *flags))}",
            "",
        )
    )


def _wrapped(words: Sequence[str], width: int = 96) -> str:
    """Wrap a command into lines that a shell reads as a single line."""
    lines = [""]
    for word in map(shell_word, words):
        if lines[-1] and len(lines[-1]) + len(word) >= width:
            lines.append("   ")
        lines[-1] += f" {word}" if lines[-1] else word
    return " \\\n".join(lines)
