"""`ftcluster fetch [RUN] [DIR]`: brings the model of a run home."""

import argparse
from pathlib import Path
from typing import Any

from ftcluster.ansible.options import ask_passwords
from ftcluster.cli.arguments import add_output, print_result
from ftcluster.cli.run_options import add_run_options, find, one_name
from ftcluster.errors import FtclusterError, UsageError
from ftcluster.launch.runs import fetch_model, find_run


def add_parser(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "fetch",
        help="copy a run's model to this machine",
        description="Copies the model that a run has trained to this machine. The folder is there "
        "only once it is whole.",
        usage="ftcluster fetch [RUN [DIR]] [options]",
    )
    add_run_options(
        parser, "RUN [DIR]", "its id (left out: the newest run), and a folder (left out: the id)"
    )
    add_output(parser, verbose="")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    if len(options.words) > 2:
        raise UsageError("one run and one folder at a time")
    with ask_passwords(vars(options)) as passwords:
        place, name = find(options, passwords, one_name(options.words[:1]))
        found = find_run(place, name)
        if not found.model:
            raise FtclusterError(f"run {name} has no model: it is {found.state}")
        folder = Path(options.words[1] if len(options.words) > 1 else name)
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise FtclusterError(f"{folder} is not empty", "name another folder")
        fetch_model(place, name, found.model, folder)
    document = {"state": "done", "run": name, "model": str(folder.absolute())}
    print_result(options, document, f"model: {folder}")
    return 0
