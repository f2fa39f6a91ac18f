"""Train in a Slurm job, whose nodes are the hosts. A requeued job resumes the training."""

import contextlib
import os
from collections.abc import Iterator, Sequence

from ftcluster.cluster.slurm import Allocation, allocation, on_first_node, requeue
from ftcluster.errors import Interrupted
from ftcluster.launch.record import read_record, recorded_runs
from ftcluster.progress.view import View
from ftcluster_common.protocol.slurm import RUNNING, job_in_queue


def current_job() -> Allocation | None:
    """Return the resources of the Slurm job that this process runs in; None outside of a job.

    Raises:
        FtclusterError: Slurm does not respond.
    """
    return allocation(os.environ)


def move_to_first_node(job: Allocation, terminal: bool, command: Sequence[str]) -> None:
    """Replace this process with srun, which runs a command on the job's first node.

    Args:
        job: the Slurm job that this process runs in.
        terminal: True if the command needs a terminal.
        command: command to run on the first node.
    """
    argv = on_first_node(job, terminal, command)
    os.execvp(argv[0], argv)


@contextlib.contextmanager
def requeued(job: Allocation, view: View) -> Iterator[None]:
    """Requeue the Slurm job if a signal stops its training, unless the job was cancelled.

    If the training was stopped before its first step, the job is not requeued, because each new
    start would end in the same way.
    """
    try:
        yield
    except Interrupted as error:
        if error.details.get("steps") and (seen := job_in_queue(job.job)).state == RUNNING:
            view.say(f"requeueing Slurm job {seen.name}, which continues the training")
            requeue(seen.name)
        raise


def earlier_run(job: Allocation, command: Sequence[str]) -> str:
    """Return the id of the run that `command` started before Slurm requeued the job.

    Return "" if there is no such run.
    """
    if not job.restarts:
        return ""
    runs = []
    for run in recorded_runs():
        record = read_record(run)
        if record and (record.get("slurm_job"), record.get("command")) == (job.job, list(command)):
            runs.append((record.get("started", 0), run))
    return max(runs)[1] if runs else ""
