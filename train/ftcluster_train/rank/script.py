"""Runs one rank of a user's script.

    python -m ftcluster_train.host.script run RUN_DIR        run the script; report how it ended
    python -m ftcluster_train.host.script look PROGRAM ...   print why PROGRAM cannot be run

PROGRAM is a path, or -m and a module. `run` reads the program and its arguments from
RUN_DIR/job.json, which only the training account can read. mpirun's arguments would not be private:
all users of a host can read them, and mpirun sends them over the network unencrypted. The script is
a child of this process, which reports the script's exit code to the supervisor. mpirun's report is
not enough, because mpirun waits for the other ranks after one has failed, and its exit code is the
same for all signals.

Standard library only, so that this process takes little time and memory.
"""

import contextlib
import importlib.util
import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from ftcluster_common.given_files import GivenFileError
from ftcluster_common.protocol.job import read_script_job
from ftcluster_common.protocol.launch import CHECKPOINT_VARIABLE, RESTART_VARIABLE
from ftcluster_train.errors import TrainError, error_line
from ftcluster_train.io import rank_status
from ftcluster_train.io.fsync import write_atomically
from ftcluster_train.io.mpi_output import RankEnd, signal_name
from ftcluster_train.io.processes import end_with_parent
from ftcluster_train.rank.startup_hooks import add_layer, own_layer

STARTUP = Path(__file__).parent.parent / "startup"  # see sitecustomize.py there
GRACE_SECONDS = 8  # between SIGTERM and SIGKILL; less than the supervisor's grace time
LEVELS = 3  # depth of the search for checkpoints in the script's start folder
COMPLETE = "trainer_state.json"  # last file that transformers' Trainer writes
STARTED = "started"  # file in the run's folder that lists the checkpoints before the first start
FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def run(run_dir: Path) -> int:
    """Run the script of a run; return its exit code, 128+n after signal n."""
    end_with_parent()
    try:
        job = read_script_job(run_dir)
    except GivenFileError as error:
        print(error_line(TrainError(str(error), "start the script again as a new run")), flush=True)
        return 1
    try:
        os.chdir(job.start)
    except OSError as error:
        problem = f"cannot change to {job.start}, the script's folder: {error.strerror}"
        print(error_line(TrainError(problem)), flush=True)
        return 1
    if not Path(own_layer()).is_dir():  # Path("") is the current folder
        problem = f"{own_layer()}, the folder with the script's packages, no longer exists"
        print(error_line(TrainError(problem, "start the run again")), flush=True)
        return 1
    if int(os.environ.get(RESTART_VARIABLE, "0")):
        os.environ[CHECKPOINT_VARIABLE] = last_checkpoint(run_dir, Path(job.start))
    else:
        mark_start(run_dir, Path(job.start))
    # signals stay blocked until the handlers are set
    signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
    child = os.fork()  # not subprocess, which would close MPI's own file descriptors
    if child == 0:
        end_with_parent(signal.SIGKILL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
        rank_status.keep_from_children()
        python_path = os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = (
            f"{STARTUP}{os.pathsep}{python_path}" if python_path else str(STARTUP)
        )
        os.execv(
            sys.executable, [sys.executable, *job.arguments(os.environ.get("LOCAL_RANK", "0"))]
        )

    rank_status.report(0, rank_status.SCRIPT, child)

    def forward(number: int, _frame: FrameType | None) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL if number == signal.SIGALRM else number)
        if number == signal.SIGTERM:
            signal.alarm(GRACE_SECONDS)

    for number in (*FORWARDED, signal.SIGALRM):
        signal.signal(number, forward)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
    _, status = os.waitpid(child, 0)
    end = rank_end(status, int(os.environ.get("RANK", os.environ.get("PMI_RANK", "0"))))
    os.write(2, end.line().encode())
    return end.code


def mark_start(run_dir: Path, folder: Path) -> None:
    """Store which checkpoints exist at the script's first start on this host.

    These checkpoints come from other training runs. The file lists the times of the checkpoints
    instead of the time of the start, because the host's clock may be set while the script runs.
    """
    path = run_dir / STARTED
    if not path.exists():  # otherwise, another rank on this host has written the file
        lines = [f"{_line(*checkpoint)}\n" for checkpoint in _checkpoints(folder)]
        with contextlib.suppress(OSError):  # disk full, or another rank writes the same
            write_atomically(path, "".join(lines))


def last_checkpoint(run_dir: Path, folder: Path) -> str:
    """Return the newest complete checkpoint of transformers' Trainer that this run has written.

    The result is "" if there is none. `folder`, in which the script starts, may also contain
    checkpoints of other training runs. In the subfolder with the newest checkpoint, the checkpoint
    with the highest step counts as the newest.
    """
    try:
        lines = (run_dir / STARTED).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # the first start on this host
        return ""
    before = set(lines)
    written = [
        checkpoint for checkpoint in _checkpoints(folder) if _line(*checkpoint) not in before
    ]
    if not written:
        return ""
    newest_folder = max(written)[1].parent
    paths = (path for _, path in written if path.parent == newest_folder)
    return str(max(paths, key=_step_of))


def _checkpoints(folder: Path) -> Iterator[tuple[int, Path]]:
    """Yield the completion time (ns) and path of each complete checkpoint in a folder."""
    for level in range(LEVELS):
        for path in folder.glob("*/" * level + "checkpoint-*"):
            # OSError: the checkpoint is incomplete, or is being removed
            with contextlib.suppress(OSError):
                if path.name.removeprefix("checkpoint-").isdecimal():
                    yield (path / COMPLETE).stat().st_mtime_ns, path


def _line(completed: int, path: Path) -> str:
    """Return a checkpoint as one line of the file STARTED."""
    return f"{completed} {str(path)!a}"


def _step_of(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix("checkpoint-"))


def rank_end(status: int, rank: int) -> RankEnd:
    """Return how a process ended, from the status of wait(2)."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return RankEnd(rank, socket.gethostname(), 128 + number, signal_name(number))
    return RankEnd(rank, socket.gethostname(), os.waitstatus_to_exitcode(status))


def why_not(program: list[str]) -> str:
    """Return why this Python cannot run a program; "" if it can."""
    if program[0] != "-m":
        path = Path(program[0])
        if path.is_file():
            return "" if os.access(path, os.R_OK) else f"{path} cannot be read"
        return f"{path} does not exist"
    add_layer()
    try:
        spec = importlib.util.find_spec(program[1])
    except (ImportError, ValueError) as error:
        return f"module {program[1]} cannot be found: {error}"
    return "" if spec else f"module {program[1]} does not exist"


def main() -> int:
    """Run the command line; return the exit code."""
    verb, *arguments = sys.argv[1:]
    if verb == "look":
        problem = why_not(arguments)
        print(problem)
        return 1 if problem else 0
    return run(Path(arguments[0]))


if __name__ == "__main__":
    sys.exit(main())
