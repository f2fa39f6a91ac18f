"""`ftcluster fetch [RUN] [DIR]`: brings the model of a run, or a script's files, home."""

import argparse
from pathlib import Path
from typing import Any

from ftcluster.cli.arguments import add_output
from ftcluster.cli.connection import add_run_options, connected
from ftcluster.cli.output import print_result
from ftcluster.errors import UsageError
from ftcluster.operations.models.push import check_push, push
from ftcluster.operations.result import Result
from ftcluster.operations.runs.runs import fetch
from ftcluster.progress.view import make_view


def add_parser(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "fetch",
        help="copy a run's model, or a script's files, to this machine",
        description="Copies the model that a run has trained to this machine; of a script, what it "
        "has written on the head into the folder that it starts in. The folder is there only once "
        "it is whole.",
        usage="ftcluster fetch [RUN [DIR]] [options]",
    )
    add_run_options(
        parser, "RUN [DIR]", "its id (left out: the newest run), and a folder (left out: the id)"
    )
    parser.add_argument(
        "--reports",
        action="store_true",
        help="copy what the trackers of report_to have written on the head instead",
    )
    group = parser.add_argument_group("upload")
    group.add_argument(
        "--push",
        metavar="OWNER/NAME",
        help="then upload it to the Hugging Face Hub with the program hf and your token (HF_TOKEN, "
        "or that of `hf auth login`); asks first",
    )
    group.add_argument(
        "--public", action="store_true", help="a new model on the Hub is public, and not private"
    )
    group.add_argument("-y", "--yes", action="store_true", help="upload without asking")
    add_output(parser, verbose="")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    if len(options.words) > 2:
        raise UsageError("one run and one folder at a time")
    if options.push and options.reports:
        raise UsageError("--reports copies what trackers wrote, and --push is for models")
    if options.public and not options.push:
        raise UsageError("--public says how --push OWNER/NAME uploads")
    run, folder, *_ = [*list(options.words), "", ""]
    view = make_view(False)
    if options.push:
        check_push(options.push)
    with connected(options) as connection:
        fetched = fetch(connection, run, folder, view, options.reports)
    if options.push:
        if not fetched.found.get("model"):  # a script's files, or reports: never what is here
            raise UsageError("not uploaded: --push is for models, and these are other files")
        path = Path(fetched.found["model"])
        kind = "public" if options.public else "private"
        question = f"upload {path} to {options.push} on the Hub, {kind} if it is new? [y/N] "
        if not options.yes and view.ask(question).lower() not in ("y", "yes"):
            raise UsageError(f"not uploaded: {path} is here", "--yes uploads without asking")
        push(path, options.push, options.public)
        said = (*fetched.text, f"uploaded: {options.push} on the Hub")
        fetched = Result({**fetched.found, "pushed": options.push}, said)
    print_result(options, fetched)
    return 0
