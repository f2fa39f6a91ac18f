"""`ftcluster export slurm [RECIPE]`: writes an sbatch script that trains a recipe."""

import argparse
from typing import Any

from ftcluster.cli.help import example_lines
from ftcluster.cli.recipe import add_training, recipe_of
from ftcluster.errors import UsageError
from ftcluster.operations.export.export_slurm import SlurmRequest, export_slurm
from ftcluster.operations.plan.recipes import known_recipes


def add_parser(kinds: Any) -> None:
    """Add the command to the parser of `export`."""
    parser = kinds.add_parser(
        "slurm",
        help="write a script for sbatch",
        description="Writes a script for sbatch that trains on the nodes that Slurm allocates. The "
        "plan is made inside the job, for these nodes.",
        usage="ftcluster export slurm [RECIPE] [key=value ...] [options]",
    )
    add_training(parser)
    group = parser.add_argument_group("Slurm")
    group.add_argument("--name", default="", metavar="NAME", help="job name (default: recipe name)")
    group.add_argument(
        "--time", default="", metavar="LIMIT", help="time limit, as in sbatch (default: Slurm's)"
    )
    group.add_argument(
        "--partition", default="", metavar="NAME", help="partition (default: Slurm's)"
    )
    group.add_argument("--account", default="", metavar="NAME", help="account (default: Slurm's)")
    group.add_argument("-o", "--output", metavar="FILE", help="write the script into a file")
    parser.set_defaults(run=run, parser=parser)
    parser.more = example_lines("export slurm", known_recipes())


def run(options: argparse.Namespace) -> int:
    """Run the command and return the exit code."""
    settings = {name: getattr(options, name) for name in ("name", "time", "partition", "account")}
    try:
        text = export_slurm(SlurmRequest(**recipe_of(options), **settings), options.output)
    except UsageError as error:
        raise UsageError(error.message, error.hint or options.parser.usage_line()) from None
    print(options.output or text, end="\n" if options.output else "")
    return 0
