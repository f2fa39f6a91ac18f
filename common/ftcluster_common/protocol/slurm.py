"""Parser of squeue's output for one job.

The id of a job array is also the id of its last task, and `squeue --jobs=ID` lists all tasks of the
array. The line of the task with this id contains ID in column %A, and in column %i the name that
means only this task, such as 12_7 (squeue(1), scancel(1)).
"""

import subprocess
from typing import NamedTuple

SQUEUE = ("squeue", "--noheader", "--format=%A %i %T")
SQUEUE_SECONDS = 20.0  # limit; if the controller is down, squeue retries for longer
RUNNING = "RUNNING"
UNKNOWN = "unknown"  # squeue failed
# part of squeue's message, with exit code 1, about a job that ended long ago
NO_JOB = "Invalid job id"


class Queued(NamedTuple):
    """A job in the queue; fields are "" if the job is not there."""

    name: str = ""
    state: str = ""


def queued(output: str, job: str) -> Queued:
    """Find a job in the output of SQUEUE with --jobs.

    >>> queued("11 12_0 RUNNING\\n12 12_7 COMPLETING\\n", "12")
    Queued(name='12_7', state='COMPLETING')
    """
    for line in output.splitlines():
        columns = line.split()
        if len(columns) == 3 and columns[0] == job:
            return Queued(columns[1], columns[2])
    return Queued()


def job_in_queue(job: str) -> Queued:
    """Return the job's entry; empty if Slurm has no such job, UNKNOWN if Slurm does not answer."""
    command = [*SQUEUE, f"--jobs={job}"]
    try:
        done = subprocess.run(
            command, capture_output=True, encoding="utf-8", errors="replace", check=False,
            timeout=SQUEUE_SECONDS,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return Queued(state=UNKNOWN)
    except OSError:
        return Queued()
    if done.returncode and NO_JOB not in done.stderr:
        return Queued(state=UNKNOWN)
    return queued(done.stdout, job)
