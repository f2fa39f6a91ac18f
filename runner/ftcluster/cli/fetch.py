"""`ftcluster fetch [RUN] [DIR]`: copies a run's model or files to this machine."""

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
        description="Copies a run's model to this machine. For a run of a script, copies the files "
        "that rank 0's script wrote into its start folder on the head. The new folder appears only "
        "once the copy is complete.",
        usage="ftcluster fetch [RUN [DIR]] [options]",
    )
    add_run_options(
        parser,
        "RUN [DIR]",
        "id of the run (default: the newest run), and a folder (default: the id)",
    )
    parser.add_argument(
        "--reports",
        action="store_true",
        help="instead copy the files that the trackers in report_to wrote on the head",
    )
    group = parser.add_argument_group("upload")
    group.add_argument(
        "--push",
        metavar="OWNER/NAME",
        help="after copying, upload the model to the Hugging Face Hub with the program hf and your "
        "token (HF_TOKEN, or the token of `hf auth login`); asks before the upload",
    )
    group.add_argument(
        "--public",
        action="store_true",
        help="if --push creates the model on the Hub, make it public (default: private)",
    )
    group.add_argument("-y", "--yes", action="store_true", help="upload without asking")
    add_output(parser, verbose="")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the command and return the exit code."""
    if len(options.words) > 2:
        raise UsageError("name one run and one folder at a time")
    if options.push and options.reports:
        raise UsageError("--reports copies trackers' files, but --push uploads only models")
    if options.public and not options.push:
        raise UsageError("--public works only with --push OWNER/NAME")
    run, folder, *_ = [*list(options.words), "", ""]
    view = make_view(False)
    if options.push:
        check_push(options.push)
    with connected(options) as connection:
        fetched = fetch(connection, run, folder, view, options.reports)
    if options.push:
        if not fetched.found.get("model"):  # files of a script, or reports
            raise UsageError("not uploaded: --push uploads only models, and these are other files")
        path = Path(fetched.found["model"])
        kind = "public" if options.public else "private"
        question = f"upload {path} to {options.push} on the Hub ({kind} if it is new)? [y/N] "
        if not options.yes and view.ask(question).lower() not in ("y", "yes"):
            raise UsageError(
                f"the model was copied to {path}, but not uploaded", "--yes uploads without asking"
            )
        push(path, options.push, options.public)
        text = (*fetched.text, f"uploaded: {options.push} on the Hub")
        fetched = Result({**fetched.found, "pushed": options.push}, text)
    print_result(options, fetched)
    return 0
