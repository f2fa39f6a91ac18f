"""`ftcluster train [RECIPE] [key=value ...]`: trains a model on the cluster."""

import argparse
import sys
from dataclasses import replace
from typing import Any

from ftcluster.cli.arguments import not_empty
from ftcluster.cli.connection import connected
from ftcluster.cli.launch_arguments import add_detach, add_grace, add_notify, launch_options
from ftcluster.cli.output import print_plan, print_result
from ftcluster.cli.recipe import add_running, add_training, recipe_of
from ftcluster.errors import UsageError
from ftcluster.operations.train.slurm_job import current_job, move_to_first_node
from ftcluster.operations.train.train import TrainRequest, dry_run, train
from ftcluster.progress.view import make_view

# options that are refused in a Slurm job, each with the reason
LOST_NODE = "Slurm ends a job that has lost a node, and requeues it (sbatch --requeue)"
WITHOUT = {
    "detach": "the job and all its processes end with its script; sbatch is already detached",
    "watch": LOST_NODE,
    "hosts": "the job's nodes are the hosts; choose them with --nodelist of sbatch",
    "spares": LOST_NODE,
    "min_nodes": LOST_NODE,
}


def add_parser(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "train",
        help="train a model on the cluster",
        description="Trains the model of a recipe on the cluster that was set up last.",
        usage="ftcluster train [RECIPE] [key=value ...] [options]",
    )
    add_training(parser)
    parser.add_argument(
        "--resume",
        type=not_empty,
        metavar="RUN",
        help="continue a run from its newest checkpoint or snapshot, as a new run with the same "
        "options, on the hosts that respond; RUN is the id of the run, or the beginning of the id",
    )
    parser.add_argument(
        "--watch",
        action="store_true",
        help="if the head does not respond for 2 minutes, continue the run on the other hosts",
    )
    add_grace(parser)
    parser.add_argument(
        "--requeue",
        action="store_true",
        help="in a Slurm job: if a signal stops the training, for example before the time limit, "
        "let Slurm requeue the job, which then continues the training",
    )
    add_detach(parser)
    add_notify(parser)
    add_running(parser)
    # None means that the user has not set the option; --resume then uses the continued run's value
    unset = ("max_restarts", "min_nodes", "timeout_seconds", "grace_seconds", "wait", "share_hosts")
    parser.set_defaults(run=run, **dict.fromkeys(unset))


def run(options: argparse.Namespace) -> int:
    """Run the command and return the exit code."""
    names = ("watch", "detach", "requeue")
    request = TrainRequest(
        **recipe_of(options),
        **{name: getattr(options, name) for name in names},
        resume=options.resume or "",
        hub_token=options.hf_token,
        launch=launch_options(options),
    )
    job = None if options.inventories else current_job()
    if job:
        for name, why in WITHOUT.items():
            if getattr(options, name):
                flag = f"--{name.replace('_', '-')}"
                raise UsageError(f"{flag} is not possible in a Slurm job: {why}", f"remove {flag}")
        if not job.here:
            command = [sys.executable, "-P", "-m", "ftcluster.cli.main", *sys.argv[1:]]
            move_to_first_node(job, sys.stdin.isatty() and sys.stdout.isatty(), command)
    view = make_view(options.verbose)
    with connected(options) as connection:
        request = replace(request, connection=connection, job=job)
        if options.dry_run:
            print_plan(options, dry_run(request, view))
        else:
            print_result(options, train(request, view))
    return 0
