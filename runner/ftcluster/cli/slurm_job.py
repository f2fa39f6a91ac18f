"""`ftcluster train` in a Slurm job: its nodes are the hosts, and a requeued job continues."""

import argparse
import contextlib
import os
import sys
from collections.abc import Iterator

from ftcluster.cluster.slurm import Allocation, allocation, on_first_node, requeue, state_of
from ftcluster.errors import Interrupted, UsageError
from ftcluster.launch.record import read_record, recorded_runs, shown_command
from ftcluster.progress.view import make_view

# options of `train` that mean nothing there, and why
WITHOUT = {
    "detach": "the job, and all its processes, end with its script; sbatch is detached already",
    "watch": "Slurm ends a job that has lost a node, and requeues it (sbatch --requeue)",
    "spares": "Slurm ends a job that has lost a node, and requeues it (sbatch --requeue)",
    "min_nodes": "Slurm ends a job that has lost a node, and requeues it (sbatch --requeue)",
}


def job_of(options: argparse.Namespace) -> Allocation | None:
    """What the Slurm job has whose nodes are to be the hosts; None where they are not.

    On a machine that is none of its nodes, as after `salloc`, this process becomes srun, which runs
    the same command on the first of them.

    Raises:
        UsageError: an option has no meaning in a job.
        FtclusterError: Slurm does not answer.
    """
    found = None if options.inventories else allocation(os.environ)
    if not found:
        return None
    for name, why in WITHOUT.items():
        if getattr(options, name):
            raise UsageError(f"--{name.replace('_', '-')} in a Slurm job: {why}", "leave it out")
    if not found.here:
        command = [sys.executable, "-m", "ftcluster.cli.main", *sys.argv[1:]]
        argv = on_first_node(found, sys.stdin.isatty() and sys.stdout.isatty(), command)
        os.execvp(argv[0], argv)
    return found


@contextlib.contextmanager
def requeued(found: Allocation) -> Iterator[None]:
    """Have Slurm start the job again where a signal stops its training, unless it was cancelled.

    Not where the training has made no step: each start of the job would end so.
    """
    try:
        yield
    except Interrupted as error:
        if error.details.get("steps") and state_of(found.job) == "RUNNING":
            make_view(True).say(f"requeueing Slurm job {found.job}, which continues the training")
            requeue(found.job)
        raise


def earlier_run(found: Allocation) -> str:
    """The run that this command had started before Slurm requeued the job; "" for none."""
    if not found.restarts:
        return ""
    command, runs = shown_command(sys.argv[1:]), []
    for run in recorded_runs():
        record = read_record(run)
        if record and (record.get("slurm_job"), record.get("command")) == (found.job, command):
            runs.append((record.get("started", 0), run))
    return max(runs)[1] if runs else ""
