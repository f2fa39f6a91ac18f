"""A training in a Slurm job: its nodes are the hosts, and a requeued job continues."""

import contextlib
import os
from collections.abc import Iterator, Sequence

from ftcluster.cluster.slurm import Allocation, allocation, on_first_node, requeue
from ftcluster.errors import Interrupted
from ftcluster.launch.record import read_record, recorded_runs
from ftcluster.progress.view import View
from ftcluster_common.protocol.slurm import RUNNING, job_in_queue


def current_job() -> Allocation | None:
    """What the Slurm job has that this process runs in; None outside of one.

    Raises:
        FtclusterError: Slurm does not answer.
    """
    return allocation(os.environ)


def move_to_first_node(job: Allocation, terminal: bool, command: Sequence[str]) -> None:
    """Make this process srun, which runs a command on the job's first node.

    Args:
        terminal: whether the command has one.
    """
    argv = on_first_node(job, terminal, command)
    os.execvp(argv[0], argv)


@contextlib.contextmanager
def requeued(job: Allocation, view: View) -> Iterator[None]:
    """Have Slurm start the job again where a signal stops its training, unless it was cancelled.

    Not where the training has made no step: each start of the job would end so.
    """
    try:
        yield
    except Interrupted as error:
        if error.details.get("steps") and (seen := job_in_queue(job.job)).state == RUNNING:
            view.say(f"requeueing Slurm job {seen.name}, which continues the training")
            requeue(seen.name)
        raise


def earlier_run(job: Allocation, command: Sequence[str]) -> str:
    """The run that a command had started before Slurm requeued the job; "" for none."""
    if not job.restarts:
        return ""
    runs = []
    for run in recorded_runs():
        record = read_record(run)
        if record and (record.get("slurm_job"), record.get("command")) == (job.job, list(command)):
            runs.append((record.get("started", 0), run))
    return max(runs)[1] if runs else ""
