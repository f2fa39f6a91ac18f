"""`ftcluster run [--nodes N] [--fast] ... -- SCRIPT ARGS ...`: runs the user's own script."""

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from ftcluster.cli.ansible_options import add_options
from ftcluster.cli.arguments import add_commands, add_dry_run, add_name, add_output, at_least
from ftcluster.cli.connection import connected
from ftcluster.cli.launch_arguments import (
    add_detach,
    add_hub_token,
    add_launch,
    add_notify,
    add_restarts,
    add_sharing,
    launch_options,
)
from ftcluster.cli.output import print_plan, print_result
from ftcluster.operations.connection import CONNECTION
from ftcluster.operations.train.run import HANG_SECONDS, USAGE, RunRequest, dry_run
from ftcluster.operations.train.run import run as run_script
from ftcluster.progress.view import make_view
from ftcluster.text.streams import Show


def add_parser(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "run",
        help="run your own script on every rank",
        description="Runs a script that uses torch.distributed, Accelerate or Trainer, unchanged, "
        "on every rank of the cluster that was set up last. Copies the script's folder to the "
        "hosts, shows the output of rank 0, and exits with the exit code of the script.",
        usage=USAGE,
    )
    add_launch(parser)
    parser.add_argument(
        "--on-hosts",
        action="store_true",
        help="SCRIPT is an absolute path that exists on every host; nothing is copied",
    )
    parser.add_argument(
        "--force",
        action="store_true",
        help="run the script even if it needs package versions that the stack does not contain",
    )
    parser.add_argument(
        "--fast",
        action="store_true",
        help="use the same kernels as `ftcluster train` for dropout, attention, GELU, cross "
        "entropy and AdamW; the output lists the modules that keep torch's code",
    )
    parser.add_argument(
        "--requirements",
        type=Path,
        metavar="FILE",
        help="extra packages that the script needs, in pip's format; each host installs them once",
    )
    parser.add_argument(
        "--wheels",
        type=Path,
        metavar="DIR",
        help="install the packages of --requirements from this folder, without a package index",
    )
    add_hub_token(parser)
    add_name(parser)
    add_restarts(parser, default=0)  # a script may be unable to resume
    parser.add_argument(
        "--hang-seconds",
        type=at_least(0),
        default=HANG_SECONDS,
        metavar="N",
        help="end the script if no rank uses its CPU, a disk or the network for N seconds; "
        f"0 means never (default: {HANG_SECONDS})",
    )
    add_sharing(parser)
    add_detach(parser)
    add_notify(parser)
    add_dry_run(parser)
    add_commands(parser)
    add_output(parser, verbose="")
    add_options(parser, ("--extra-vars", *CONNECTION))
    parser.add_argument(
        "words",
        nargs=argparse.REMAINDER,
        metavar="SCRIPT ARGS",
        help="a Python file with its arguments, or -m MODULE with its arguments",
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the command and return the exit code."""
    words = options.words[1:] if options.words[:1] == ["--"] else options.words
    names = (
        "hosts", "nodes", "spares", "ranks_per_host", "on_hosts", "force", "fast", "requirements",
        "wheels", "detach", "run_name",
    )  # fmt: skip
    settings = {name: getattr(options, name) for name in names}
    token, launch = options.hf_token, launch_options(options)
    request = RunRequest(tuple(words), hub_token=token, launch=launch, **settings)
    view = make_view(verbose=True)  # a live view would garble the output of rank 0
    show = Show(sys.stderr if options.json else sys.stdout, sys.stderr)
    try:
        with connected(options) as connection:
            request = replace(request, connection=connection)
            if options.dry_run:
                print_plan(options, dry_run(request, view))
                return 0
            result = run_script(request, show, view, lambda: show.closed)
    finally:
        if show.in_line and sys.stderr.isatty():
            print(file=sys.stderr)  # so that the next message begins on a new line
    if options.json or result.progress.state == "running":
        print_result(options, result)
    else:
        for line in result.lines():  # stdout belongs to the script
            view.say(line)
    return 0
