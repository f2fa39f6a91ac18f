"""`ftcluster export WHAT`: writes the files with which another scheduler trains a recipe."""

from typing import Any

from ftcluster.cli import export_k8s, export_slurm
from ftcluster.cli.parser import add_kinds


def add_parser(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "export",
        help="write files for training with Kubernetes or Slurm",
        description="Writes the files with which Kubernetes or Slurm trains a recipe. Starts "
        "nothing.",
    )
    kinds = add_kinds(parser, "export")
    export_k8s.add_parser(kinds)
    export_slurm.add_parser(kinds)
