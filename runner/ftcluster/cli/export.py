"""`ftcluster export WHAT`: writes a training as files for another scheduler."""

from typing import Any

from ftcluster.cli import export_k8s, export_slurm
from ftcluster.cli.parser import add_kinds


def add_parser(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "export",
        help="write a training for Kubernetes or Slurm",
        description="Writes the files with which Kubernetes or Slurm runs a training. Starts "
        "nothing.",
    )
    kinds = add_kinds(parser, "export")
    export_k8s.add_parser(kinds)
    export_slurm.add_parser(kinds)
