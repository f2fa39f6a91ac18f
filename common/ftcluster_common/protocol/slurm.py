"""What squeue says of one job.

`squeue --jobs=ID` lists all tasks of an array where ID is the array's own, which its last task has,
too: the line is that whose own id (%A) it is. %i is the name by which that task alone is meant:
12_7 (squeue(1), scancel(1)).
"""

import subprocess
from typing import NamedTuple

SQUEUE = ("squeue", "--noheader", "--format=%A %i %T")
SQUEUE_SECONDS = 20.0  # it asks a controller that is down for longer
RUNNING = "RUNNING"
UNKNOWN = "unknown"  # squeue failed
NO_JOB = "Invalid job id"  # part of what it says, with exit code 1, of a job that ended long ago


class Queued(NamedTuple):
    """A job in the queue; fields are "" where it is not there."""

    name: str = ""
    state: str = ""


def queued(output: str, job: str) -> Queued:
    """Find a job in what SQUEUE with --jobs prints.

    >>> queued("11 12_0 RUNNING\\n12 12_7 COMPLETING\\n", "12")
    Queued(name='12_7', state='COMPLETING')
    """
    for line in output.splitlines():
        words = line.split()
        if len(words) == 3 and words[0] == job:
            return Queued(words[1], words[2])
    return Queued()


def job_in_queue(job: str) -> Queued:
    """What Slurm says: nothing where there is none, UNKNOWN where it does not answer."""
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
