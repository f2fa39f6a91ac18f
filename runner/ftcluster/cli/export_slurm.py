"""`ftcluster export slurm [RECIPE]`: the training as a script for sbatch."""

import argparse
import re
import shutil
import sys
from pathlib import Path
from typing import Any

from ftcluster.cli.help import example_lines
from ftcluster.cli.recipe_words import split_words, training_recipe
from ftcluster.cli.train import add_training, recipe_words
from ftcluster.errors import UsageError
from ftcluster.export.slurm import BatchJob, batch_script
from ftcluster.paths import plain_name, write_atomically
from ftcluster.recipe.inputs import check_inputs
from ftcluster.recipe.recipe import known_recipes

READABLE = 0o644
# sbatch(1): minutes, minutes:seconds, hours:minutes:seconds, days-hours, ...
TIME = re.compile(r"(\d+-)?\d+(:\d+){0,2}", re.ASCII)
NAME = re.compile(r"[\w.,+-]+", re.ASCII)


def add_parser(kinds: Any) -> None:
    """Add the command to the parser of `export`."""
    parser = kinds.add_parser(
        "slurm",
        help="a script for sbatch",
        description="Writes a script for sbatch that trains on the nodes that Slurm gives it. The "
        "plan is made in the job, for these nodes.",
        usage="ftcluster export slurm [RECIPE] [key=value ...] [options]",
    )
    add_training(parser)
    group = parser.add_argument_group("Slurm")
    group.add_argument("--name", default="", metavar="NAME", help="of the job (default: recipe's)")
    group.add_argument(
        "--time", default="", metavar="LIMIT", help="as in sbatch (default: Slurm's)"
    )
    group.add_argument("--partition", default="", metavar="NAME", help="(default: Slurm's)")
    group.add_argument("--account", default="", metavar="NAME", help="(default: Slurm's)")
    group.add_argument("-o", "--output", metavar="FILE", help="write the script into a file")
    parser.set_defaults(run=run, parser=parser)
    parser.more = example_lines("export slurm", known_recipes())


def run(options: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    problems = wrong_options(options)
    if problems:
        raise UsageError("\n".join(problems), options.parser.usage_line())
    recipe = training_recipe(recipe_words(options), options.data, options.model)
    check_inputs(recipe, "train")
    limits = ("time", "partition", "account")
    job = BatchJob(
        options.name or plain_name(recipe.name),
        options.nodes or 1,
        tuple(f"--{name}={value}" for name in limits if (value := getattr(options, name))),
        train_command(options),
    )
    text = batch_script(job)
    if options.output:
        write_atomically(Path(options.output), text, READABLE)
        print(options.output)
    else:
        print(text, end="")
    return 0


def wrong_options(options: argparse.Namespace) -> list[str]:
    """What is wrong with options of this command alone, a sentence each."""
    problems = []
    if options.time and not TIME.fullmatch(options.time):
        problems.append(f"--time: {options.time!r} is no time of sbatch, such as 4:00:00")
    for name in ("name", "partition", "account"):
        value = getattr(options, name)
        if value and not NAME.fullmatch(value):
            problems.append(f"--{name}: {value!r} is not a name of Slurm")
    if options.spares:
        problems.append("--spares: Slurm ends a job that has lost a node, and requeues it")
    return problems


def train_command(options: argparse.Namespace) -> tuple[str, ...]:
    """The command of the job, with absolute paths for what is in this folder."""
    recipe, overrides = split_words(options.words)
    program = shutil.which(sys.argv[0])
    shape = {"--sync": options.sync, "--ranks-per-host": options.ranks_per_host}
    given = {"--data": _absolute(options.data), "--model": _absolute(options.model), **shape}
    found = str(Path(program).absolute()) if program else "ftcluster"
    recipe = str(Path(recipe).absolute()) if Path(recipe).is_file() else recipe
    flags = [(name, str(value)) for name, value in given.items() if value is not None]
    return (found, "train", recipe, *overrides, *(word for flag in flags for word in flag))


def _absolute(name: str | None) -> str | None:
    """The absolute path of a file or folder of this machine; other names as they are."""
    return str(Path(name).absolute()) if name and Path(name).exists() else name
