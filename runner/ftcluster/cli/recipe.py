"""Arguments of commands that take a recipe, and their values."""

import argparse
from pathlib import Path
from typing import Any

from ftcluster.cli.ansible_options import add_options
from ftcluster.cli.arguments import (
    add_commands,
    add_dry_run,
    add_name,
    add_output,
    not_empty,
)
from ftcluster.cli.connection import add_cluster
from ftcluster.cli.launch_arguments import (
    add_hub_token,
    add_launch,
    add_notify,
    add_restarts,
    add_sharing,
)
from ftcluster.operations.connection import CONNECTION
from ftcluster.operations.train.recipe_words import DEFAULT_RECIPE


def add_recipe(parser: argparse.ArgumentParser) -> None:
    """Add a recipe, its data and its model."""
    parser.add_argument(
        "words",
        nargs="*",
        metavar="RECIPE or key=value",
        help=f"a built-in recipe or a YAML file (default: {DEFAULT_RECIPE}), and any of its "
        "fields, such as training.seed=7",
    )
    add_data(
        parser,
        "a file or folder with CSV, TSV, JSON, JSONL, Parquet or text, or a data set on the Hub; "
        "repeat the option to train on several data sets",
    )
    parser.add_argument(
        "--model", type=not_empty, metavar="DIR", help="a model folder, or a model on the Hub"
    )
    add_code(parser)
    parser.set_defaults(takes_recipe=True)


def add_data(parser: argparse.ArgumentParser, meaning: str) -> None:
    """Add --data, which may be repeated."""
    parser.add_argument("--data", type=not_empty, action="append", metavar="PATH", help=meaning)


def add_code(parser: argparse.ArgumentParser) -> None:
    """Add --task and --metrics."""
    parser.add_argument(
        "--task",
        type=not_empty,
        metavar="FILE.py",
        help="a Python file of yours, or a folder with a package, that defines the recipe's task; "
        "it runs with your rights, here and on the hosts",
    )
    parser.add_argument(
        "--metrics",
        type=not_empty,
        metavar="FILE.py",
        help="a Python file of yours with a function compute_metrics(predictions, references), "
        "which the hosts run",
    )


def add_training(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that `train` and `plan` share."""
    add_recipe(parser)
    parser.add_argument(
        "--sync",
        choices=("step", "local"),
        help="local, for slow networks: hosts take local steps and average their weights "
        "every 32 steps (training.sync_steps), which gives a different model (default: step)",
    )
    add_launch(parser)


def add_running(parser: argparse.ArgumentParser) -> None:
    """Add the arguments shared by all commands that run a recipe on the cluster."""
    add_hub_token(parser)
    add_name(parser)
    add_cluster(parser)
    add_restarts(parser, default=3)
    add_sharing(parser)
    add_dry_run(parser)
    add_commands(parser)
    add_output(parser, verbose="print plain lines instead of the live view")
    add_options(parser, ("--extra-vars", *CONNECTION))


def add_use(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of commands that use a trained model."""
    parser.add_argument(
        "words",
        nargs="*",
        metavar="RECIPE or key=value",
        help="the recipe that the model was trained with (default: the recipe named in the model's "
        f"folder, or else {DEFAULT_RECIPE}), and its fields",
    )
    parser.add_argument(
        "--model",
        type=not_empty,
        metavar="DIR",
        required=True,
        help="folder of the trained model (see ftcluster fetch), or a model on the Hub",
    )
    add_data(parser, "a file, a folder or a data set on the Hub")
    add_code(parser)
    add_launch(parser)
    add_notify(parser)
    add_running(parser)
    parser.set_defaults(takes_recipe=True)


def recipe_of(options: argparse.Namespace) -> dict[str, Any]:
    """Return the fields of a RecipeRequest from the options, except its connection."""
    sync = getattr(options, "sync", None)
    words = (*([f"training.sync={sync}"] if sync else []), *options.words)
    names = ("data", "model", "hosts", "nodes", "spares", "ranks_per_host", "run_name")
    settings = {name: getattr(options, name) for name in names if hasattr(options, name)}
    if settings.get("data"):
        first, *others = settings["data"]
        settings["data"] = (first, *others) if others else first
    for name in ("task", "metrics"):  # the recipe has these fields too
        value = getattr(options, name, None) or ""
        is_folder = name == "task" and ("/" in value or Path(value, "__init__.py").is_file())
        if value.endswith(".py") or is_folder:
            settings[name] = value
        elif value:
            words = (*words, f"{name}={value}")
    return {"words": words, **settings}
