"""The supervisor: runs mpirun on the head, independently of the control node's connection.

    M=ftcluster_train.host.supervisor
    python -m $M start RUN_DIR          launch, in the background
    python -m $M supervise RUN_DIR      launch, in the foreground
    python -m $M stop RUN_DIR           end the run; print whether it ran, and how it has ended
    python -m $M stop RUN_DIR --force   the same, without the supervisor's help
    python -m $M sweep RUN_DIR          kill the run's remaining processes on this host

`start` does nothing if the run has a supervisor or has ended. root may run `start RUN_DIR --user
NAME` for an account. This command exits with NO_UNIT if the supervisor cannot be a systemd unit. A
supervisor that replaces a killed supervisor restarts the ranks.

Standard library only: the supervisor starts at once and does not depend on the programs that it
watches.
"""

import contextlib
import os
import shlex
import signal
import sys
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ftcluster_common.given_files import GivenFileError
from ftcluster_common.protocol.launch import (
    LAUNCH_FILE,
    RUN_VARIABLE,
    SLURM_VARIABLE,
    STOPPED_BY_VARIABLE,
    Launch,
    read_launch,
    read_outline,
)
from ftcluster_common.protocol.slurm import job_in_queue
from ftcluster_train.errors import TrainError
from ftcluster_train.io import processes
from ftcluster_train.io.events import EventWriter, has_ended, place_and_message, seconds_since_first
from ftcluster_train.io.fsync import write_atomically
from ftcluster_train.io.processes import kill_rest
from ftcluster_train.io.shutdown import ANSWER_SECONDS
from ftcluster_train.supervisor import background, runs
from ftcluster_train.supervisor.background import PID_FILE, STOP_FILE
from ftcluster_train.supervisor.heartbeats import STOPPED_EXIT_CODE, Stopped, StopRequest
from ftcluster_train.supervisor.leases import Leases
from ftcluster_train.supervisor.metrics_file import MetricsFile
from ftcluster_train.supervisor.monitors import Ending
from ftcluster_train.supervisor.notifier import Notifier
from ftcluster_train.supervisor.rank_environment import (
    SECRETS,
    left_secrets,
    take_back_secrets,
    take_secrets,
)
from ftcluster_train.supervisor.rank_environment import (
    free_port as free_port,  # for --dry-run's text
)
from ftcluster_train.supervisor.rank_launch import (
    HostsRefused,
    SupervisedRun,
    refusal_fields,
)
from ftcluster_train.supervisor.restarts import run_with_restarts
from ftcluster_train.supervisor.ssh_check import HostFailure, refusals
from ftcluster_train.supervisor.stop_causes import NO_CAUSE, StopCause, by_command, by_signal

SNAPSHOTS = "snapshots"  # folder in the run's folder on each host
NO_UNIT = 3  # exit code of `start --user` without a systemd unit
SUPERVISED, UNSUPERVISED = 0, 4  # exit codes of the process of `as_account`
NOT_PREPARED = (
    "has no prepared model and data yet: wait while ftcluster ps shows it as preparing; if its "
    "preparation has failed, start a new run"
)


def supervise(run_dir: Path, request: StopRequest, again: bool = False) -> int:
    """Launch, wait, report and clean up; return mpirun's exit code.

    Args:
        run_dir: folder of the run, with launch.json; the control node writes secret files there, if
            any.
        request: handler of the signals that end the run.
        again: True if a previous supervisor of the run was killed.
    """
    rebooted = background.was_rebooted(run_dir)
    launch = read_launch(run_dir)
    notifier = Notifier(launch)

    def also(event: str, fields: Mapping[str, Any]) -> None:
        background.log_event(run_dir.name, event, fields)
        notifier.see(event, fields)

    events = EventWriter(run_dir, also)
    os.environ[RUN_VARIABLE] = launch.run  # child processes belong to the run
    began = time.time() - seconds_since_first(run_dir)
    leases = Leases(launch.share_hosts, launch.started_by, began)
    metrics = MetricsFile(run_dir)
    try:
        if (run_dir / STOP_FILE).exists():
            raise Stopped
        notifier.prepare(request, events)
        run = SupervisedRun(leases, events, take_secrets(launch, request), request, metrics)
        ending = run_with_restarts(launch, run, again, rebooted)
    except Stopped:  # while no rank was running
        kill_rest(launch.run)
        ending = Ending("stopped", STOPPED_EXIT_CODE, [])
    except TrainError as error:
        head = launch.hosts[0].name
        fields = {"message": error.message, "hint": error.hint, "host": head, "rank": None}
        ending = Ending("failed", 1, [fields])
    except HostsRefused as error:
        ending = Ending("failed", 1, [_not_started(refusal) for refusal in error.refused])
    finally:
        request.holding = True
        notifier.read_webhook()
        forget_secrets(run_dir)  # also after an unexpected error
        leases.release()
    background.wait_for_space(run_dir)
    for message in {str(error["message"]): error for error in ending.errors}.values():
        events.write("error", **message)
    why = why_ended(ending, run_dir, request, launch.hosts[0].name)
    if launch.slurm_job:  # Slurm ends all processes of the job soon after the last event
        notifier.end(ending.state, why.get("why", ""))
    events.write(
        "end", state=ending.state, exit_code=ending.exit_code, seconds=ending.seconds, **why
    )
    launch = read_launch(run_dir)
    metrics.write(launch)
    if not launch.slurm_job:
        notifier.end(ending.state, why.get("why", ""))
    if ending.state == "done" and launch.idle and not launch.slurm_job:
        forget_snapshots(launch)  # after the last event, because a host that is off delays this
    return ending.exit_code


def forget_snapshots(launch: Launch) -> None:
    """Remove the snapshots on hosts that were lost; the ranks of all others have removed theirs."""
    folder = shlex.quote(f"{launch.run_dir}/{SNAPSHOTS}")
    refusals(launch.idle, launch.ssh_config, f"rm -rf {folder}")


def why_ended(ending: Ending, run_dir: Path, request: StopRequest, head: str) -> dict[str, str]:
    """Return the fields `cause` and `why` of the event `end`; {} for a run that is done."""
    if ending.state == "done":
        return {}
    if ending.state == "stopped":
        cause = ending.cause if ending.cause != NO_CAUSE else cause_of_stop(run_dir, request, head)
        return {"cause": cause.cause, "why": cause.message}
    first = ending.errors[0]
    why = place_and_message(first).splitlines()[0]
    return {"cause": str(first.get("cause", "error")), "why": why}


def cause_of_stop(run_dir: Path, request: StopRequest, head: str) -> StopCause:
    """Return who has stopped a run through its supervisor."""
    if (stop := run_dir / STOP_FILE).exists():
        return by_command(stop.read_text(encoding="utf-8", errors="replace").strip())
    if request.received is None:
        return NO_CAUSE
    deadline = time.monotonic() + ANSWER_SECONDS
    while request.received.stopping is None and time.monotonic() < deadline:
        time.sleep(0.05)  # a thread queries systemd
    return by_signal(request.received, head, "the supervisor", request.at)


def _not_started(refusal: HostFailure) -> dict[str, Any]:
    """Return the fields of an event `error` about a host that refuses the first ranks."""
    fields = refusal_fields(refusal)
    none = "" if refusal.in_use else "no rank was started"
    return {**fields, "hint": "; ".join(filter(None, (none, fields["hint"])))}


def forget_secrets(run_dir: Path) -> None:
    """Remove the run's secret files, if any, from all hosts."""
    if not (remaining := left_secrets(run_dir)):
        return
    try:
        launch = read_launch(run_dir)
    except GivenFileError as error:  # written by another version, or damaged
        for path in remaining:
            path.unlink(missing_ok=True)
        message = f"other hosts may still have secret files of {run_dir.name}: {error}"
        print(message, file=sys.stderr)
        return
    take_back_secrets(launch)


def start(run_dir: Path, user: str) -> int:
    """Start a supervisor unless the run has one or has ended; return the exit code.

    Args:
        run_dir: folder of the run.
        user: account to start the supervisor for, if root calls this; root reads no file in
            `run_dir`. Otherwise "".

    Raises:
        TrainError: the account's files cannot be read.
    """
    before = background.as_account(user, lambda: read_state(run_dir))
    if before not in (SUPERVISED, UNSUPERVISED):
        return before
    if before == UNSUPERVISED:
        try:
            background.start_unit(run_dir, user)
        except background.NoUnit as error:
            if user:
                return NO_UNIT
            if background.detach():
                os._exit(become(run_dir, str(error)))
    if background.as_account(user, lambda: int(not background.wait_for_supervisor(run_dir))):
        print(f"the supervisor does not start; see {run_dir}/supervisor.log", file=sys.stderr)
        return 1
    return 0


def read_state(run_dir: Path) -> int:
    """Return SUPERVISED, UNSUPERVISED, or 1 after printing why no supervisor may start here."""
    if background.is_supervised(run_dir):
        return SUPERVISED
    if not (run_dir / LAUNCH_FILE).exists():
        print(f"{run_dir.name} {NOT_PREPARED}", file=sys.stderr)
        return 1
    if elsewhere := slurm_elsewhere(run_dir):
        print(elsewhere, file=sys.stderr)
        return 1
    return UNSUPERVISED


def slurm_elsewhere(run_dir: Path) -> str:
    """Return a hint if a Slurm job's run is supervised on another node; else ""."""
    if not (launch := read_outline(run_dir)).slurm_job:
        return ""
    here = (os.environ.get(SLURM_VARIABLE), os.environ.get("SLURMD_NODENAME"))
    if here == (launch.slurm_job, launch.head):
        return ""
    # quoted, because others may have written the files and users copy this command
    job, node = (shlex.quote(text) for text in (launch.slurm_job, launch.head))
    name = shlex.quote(job_in_queue(launch.slurm_job).name or launch.slurm_job)
    step = f"srun --jobid={job} --overlap --nodes=1 --nodelist={node}"
    run = shlex.quote(run_dir.name)
    return (
        f"{run_dir.name} is a run of Slurm job {job}; follow it with {step} --pty "
        f"ftcluster attach {run}, or stop it with scancel {name}"
    )


def become(run_dir: Path, no_unit: str = "") -> int:
    """Become the run's supervisor; return the exit code.

    Args:
        run_dir: folder of the run.
        no_unit: reason why the supervisor is not a systemd unit, if users can change it; else "".
    """
    again = background.become_supervisor(run_dir)
    if again and has_ended(run_dir):  # the supervisor was killed after the last event
        forget_secrets(run_dir)
        return 0
    request = StopRequest()
    request.learn_senders()
    background.feed_watchdog()
    background.wait_for_space(run_dir)
    write_atomically(run_dir / PID_FILE, f"{os.getpid()}\n")
    try:
        if no_unit and not again:
            background.say_why_no_unit(run_dir, no_unit)
        return supervise(run_dir, request, again)
    except BaseException:
        traceback.print_exc()
        return 1


def stop(run_dir: Path) -> str:
    """End a run; return "stopped", or "not running" if the run has no supervisor."""
    if has_ended(run_dir):
        return "not running"
    if elsewhere := slurm_elsewhere(run_dir):
        raise SystemExit(elsewhere)
    ask_to_stop(run_dir)  # also for a supervisor that is just starting
    seen = time.monotonic() if (run_dir / PID_FILE).exists() else float("-inf")
    grace = read_outline(run_dir).grace_seconds if (run_dir / LAUNCH_FILE).exists() else 0.0
    deadline = time.monotonic() + grace + 3 * processes.GRACE_SECONDS
    asked = None
    while time.monotonic() < deadline:
        if has_ended(run_dir):  # the supervisor may still notify the user
            return "stopped"
        pid = background.supervisor_of(run_dir)
        if pid is None and time.monotonic() - seen > background.BACK_SECONDS:
            return "not running"
        if pid is not None:
            seen = time.monotonic()
        if pid is not None and pid != asked:
            asked = pid
            _signal(pid, signal.SIGTERM)
        if pid is not None and background.is_stopped(pid):
            _signal(pid, signal.SIGCONT)
        time.sleep(0.1)
    raise SystemExit(f"the supervisor (process {asked}) does not end")


def ask_to_stop(run_dir: Path) -> None:
    """Mark a run to be ended, with the user and machine that requested the end."""
    (run_dir / STOP_FILE).write_text(os.environ.get(STOPPED_BY_VARIABLE, ""), encoding="utf-8")


def force_stop(run_dir: Path) -> str:
    """End a run whose supervisor does not end it, and mark it as stopped.

    Returns:
        The same texts as `stop`.
    """
    if has_ended(run_dir):
        return "not running"
    if elsewhere := slurm_elsewhere(run_dir):
        raise SystemExit(elsewhere)
    ask_to_stop(run_dir)  # a restarted supervisor then ends the run
    deadline = time.monotonic() + background.BACK_SECONDS
    killed = None
    while time.monotonic() < deadline and not has_ended(run_dir):
        pid = background.supervisor_of(run_dir)
        if pid is not None and killed is None:
            killed = pid
            _signal(pid, signal.SIGKILL)
        time.sleep(0.1)
    processes.kill_all(run_dir.name)
    if not has_ended(run_dir):  # the supervisor was not replaced, or the new one hangs too
        if (pid := background.supervisor_of(run_dir)) is not None:
            _signal(pid, signal.SIGKILL)
        seconds = round(seconds_since_first(run_dir), 2)
        cause = by_command(os.environ.get(STOPPED_BY_VARIABLE, ""))
        EventWriter(run_dir).write(
            "end", state="stopped", exit_code=STOPPED_EXIT_CODE, seconds=seconds,
            cause=cause.cause, why=cause.message,
        )  # fmt: skip
        with contextlib.suppress(GivenFileError):
            Notifier(read_launch(run_dir)).end("stopped", cause.message, wait=False)
    with contextlib.suppress(GivenFileError):  # the run never began, or is of another version
        MetricsFile(run_dir).write(read_launch(run_dir))
    return "stopped"


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def main() -> int:
    """Run the command line; return the exit code."""
    try:
        return run_verb(*sys.argv[1:])
    except TrainError as error:
        raise SystemExit(error.message) from None
    except PermissionError as error:
        raise SystemExit(
            f"{error.filename}: {error.strerror}; only its owner can do that"
        ) from None
    except GivenFileError as error:
        owner = (
            "; only its owner can do that" if isinstance(error.__cause__, PermissionError) else ""
        )
        raise SystemExit(f"{error}{owner}") from None


def run_verb(verb: str, folder: str, *options: str) -> int:
    """Carry out a verb of the command line; return the exit code."""
    run_dir = Path(folder)
    if verb == "start":
        return start(run_dir, options[1] if options[:1] == ("--user",) else "")
    if verb == "supervise":
        return become(run_dir)
    if verb == "sweep":
        print(f"ended {len(kill_rest(run_dir.name))}")
        for name in SECRETS:
            (run_dir / name).unlink(missing_ok=True)
    else:
        print(force_stop(run_dir) if options == ("--force",) else stop(run_dir))
        forget_secrets(run_dir)  # a killed supervisor has left them
        print(runs.listed(run_dir.parent, [run_dir.name], most=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
