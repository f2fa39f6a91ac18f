"""Export a training run as a script for sbatch.

Nothing is started. The plan is made when the job runs.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from ftcluster.errors import UsageError
from ftcluster.export.slurm import BatchJob, batch_script
from ftcluster.operations.train.prepare import RecipeRequest
from ftcluster.operations.train.recipe_words import (
    names_no_recipe,
    split_words,
    training_recipe,
)
from ftcluster.paths import SHARED_FILE, plain_name, write_atomically
from ftcluster.recipe.inputs import check_inputs
from ftcluster.user_script.own_code import reported

# sbatch(1): minutes, minutes:seconds, hours:minutes:seconds, days-hours, ...
TIME = re.compile(r"(\d+-)?\d+(:\d+){0,2}", re.ASCII)
NAME = re.compile(r"[\w.,+-]+", re.ASCII)


@dataclass(frozen=True)
class SlurmRequest(RecipeRequest):
    """A training run to export, and the options of its Slurm job.

    Attributes:
        name: name of the job; "" for the recipe's name.
        time: time limit in sbatch's format; "" for Slurm's default.
        partition: name of the Slurm partition; "" for Slurm's default.
        account: name of the Slurm account; "" for Slurm's default.
    """

    name: str = ""
    time: str = ""
    partition: str = ""
    account: str = ""


def export_slurm(request: SlurmRequest, output: str | None = None) -> str:
    """Return the sbatch script. If `output` is given, write the script to that file too.

    Raises:
        UsageError: the request is not valid; lists all problems.
        FtclusterError: the recipe or its folders are not valid.
    """
    if problems := _wrong(request):
        raise UsageError("\n".join(problems))
    code = request.user_code()
    with reported():
        recipe = training_recipe(request.words, request.data, request.model, code=code)
        check_inputs(recipe, "train")
    limits = ("time", "partition", "account")
    job = BatchJob(
        request.name or plain_name(recipe.name),
        request.nodes or 1,
        tuple(f"--{name}={value}" for name in limits if (value := getattr(request, name))),
        _train_arguments(request),
    )
    text = batch_script(job)
    if output:
        write_atomically(Path(output), text, SHARED_FILE)
    return text


def _wrong(request: SlurmRequest) -> list[str]:
    """Return the problems of the request itself, one sentence per problem."""
    problems = []
    if request.time and not TIME.fullmatch(request.time):
        problems.append(f"--time: {request.time!r} is not a time limit for sbatch, such as 4:00:00")
    for name in ("name", "partition", "account"):
        value = getattr(request, name)
        if value and not NAME.fullmatch(value):
            problems.append(f"--{name}: {value!r} is not a valid name in Slurm")
    if request.hosts:
        problems.append(
            "--hosts: remove it, because Slurm chooses the nodes; see --nodelist of sbatch"
        )
    if request.spares:
        problems.append(
            "--spares: remove it, because Slurm ends and requeues a job that has lost a node"
        )
    return problems


def _train_arguments(request: SlurmRequest) -> tuple[str, ...]:
    """Return the arguments of ftcluster in the job, with absolute paths for local files."""
    recipe, overrides = split_words(request.words)
    if request.task and names_no_recipe(request.words):
        recipe = ""  # the task's file defines the recipe
    options = {
        "--task": _absolute(request.task or None),
        "--metrics": _absolute(request.metrics or None),
    }
    options["--model"] = _absolute(request.model)
    if request.ranks_per_host is not None:
        options["--ranks-per-host"] = str(request.ranks_per_host)
    recipe = str(Path(recipe).absolute()) if Path(recipe).is_file() else recipe
    flags: list[tuple[str, str | None]] = []
    for entry in [request.data] if isinstance(request.data, str) else request.data or ():
        if not isinstance(entry, str):
            raise UsageError(
                "a job cannot pass a data set with settings on its command line",
                "write the data set into a recipe file, and pass that file as the recipe",
            )
        flags.append(("--data", _absolute(entry)))
    flags += options.items()
    arguments = (text for flag, value in flags if value is not None for text in (flag, value))
    return ("train", *filter(None, [recipe]), *overrides, *arguments)


def _absolute(name: str | None) -> str | None:
    """Return the absolute path of a local file or folder. Return any other name unchanged."""
    return str(Path(name).absolute()) if name and Path(name).exists() else name
