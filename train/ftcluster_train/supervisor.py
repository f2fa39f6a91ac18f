"""Runs one mpirun on the head, outlives the control node's connection, and ends what it started.

    python -m ftcluster_train.supervisor start RUN_DIR       launch, in the background
    python -m ftcluster_train.supervisor supervise RUN_DIR   launch, in the foreground
    python -m ftcluster_train.supervisor stop RUN_DIR        end the run, print whether it ran
    python -m ftcluster_train.supervisor sweep RUN_DIR       kill what is left of it on this host

`start` does nothing where the run has a supervisor or has ended. For root, `start RUN_DIR --user
NAME` is that of an account; it exits with NO_UNIT where it cannot be a unit of systemd. One that
follows a killed supervisor restarts the ranks.

Standard library only: it starts at once and does not depend on what it watches.
"""

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

from ftcluster_common.launch import (
    GUARD_FILE,
    LAUNCH_FILE,
    RESTART_VARIABLE,
    RUN_VARIABLE,
    Launch,
    read_launch,
)
from ftcluster_train.distributed import oneccl
from ftcluster_train.errors import TrainError
from ftcluster_train.io.events import EventWriter, has_ended, seconds_since_first
from ftcluster_train.io.fsync import write_atomically
from ftcluster_train.launcher import background, lease, processes
from ftcluster_train.launcher.background import PID_FILE, STOP_FILE
from ftcluster_train.launcher.guardian import ADDRESS, SECRET
from ftcluster_train.launcher.heartbeats import Heartbeats, RankLife, Trouble
from ftcluster_train.launcher.host_leases import Leases
from ftcluster_train.launcher.hub_token import give, take_back, token_file
from ftcluster_train.launcher.monitors import Ending, Watch, watch_of
from ftcluster_train.launcher.processes import end_group, kill_rest
from ftcluster_train.launcher.rank_environment import free_port as free_port  # for --dry-run's text
from ftcluster_train.launcher.rank_environment import (
    host_path,
    rank_environment,
    without_credentials,
)
from ftcluster_train.launcher.ssh_check import Refusal
from ftcluster_train.launcher.stack_lock import hold_stack, own_stack
from ftcluster_train.launcher.stop_request import EXIT_CODE, SAVE_SECONDS, Stopped, StopRequest

PAUSE_SECONDS = 0.2
HOST_RETRY_SECONDS = 5.0
NO_UNIT = 3  # exit code of `start`


class HostsRefused(Exception):
    """Hosts on which no rank can be started."""

    def __init__(self, refused: list[Refusal]) -> None:
        super().__init__()
        self.refused = refused


def supervise(run_dir: Path, request: StopRequest, again: bool = False) -> int:
    """Launch, wait, report and clean up; returns mpirun's exit code.

    Args:
        run_dir: has launch.json, and the token for the Hub that the hosts get, or none.
        request: takes the signals that end the run.
        again: whether the run had a supervisor that was killed.
    """
    events = EventWriter(run_dir)
    launch = read_launch(run_dir)
    os.environ[RUN_VARIABLE] = launch.run  # what this process starts belongs to the run
    leases = Leases(launch.share_hosts)
    try:
        if (run_dir / STOP_FILE).exists():
            raise Stopped
        token = kept_token(run_dir)
        ending = run_with_restarts(launch, leases, events, token, request, again)
    except Stopped:  # while no rank was running
        kill_rest(launch.run)
        ending = Ending("stopped", EXIT_CODE, [])
    except TrainError as error:
        head = launch.hosts[0].name
        fields = {"message": error.message, "hint": error.hint, "host": head, "rank": None}
        ending = Ending("failed", 1, [fields])
    except HostsRefused as error:
        ending = Ending("failed", 1, [_not_started(refusal) for refusal in error.refused])
    finally:
        request.holding = True
        forget_token(run_dir)  # also after an unexpected error
        leases.release()
    for message in {str(error["message"]): error for error in ending.errors}.values():
        events.write("error", **message)
    events.write("end", state=ending.state, exit_code=ending.exit_code, seconds=ending.seconds)
    return ending.exit_code


def run_with_restarts(
    launch: Launch,
    leases: Leases,
    events: EventWriter,
    hub_token: str,
    request: StopRequest,
    again: bool,
) -> Ending:
    """Start the ranks again after a failure that is not the program's own, as often as allowed.

    A training resumes by itself from its newest checkpoint or snapshot. A host that was lost is
    waited for, or left out where the launch has hosts to spare.

    Raises:
        HostsRefused, TrainError, Stopped: no rank was started at all.
    """
    began = time.monotonic()
    if again:
        began -= seconds_since_first(Path(launch.run_dir))
        processes.kill_all(launch.run)
        ending = Ending("failed", 1, [_killed(launch)], restartable=True)
    else:
        ending = run_ranks(launch, leases, events, hub_token, request)
    while ending.restartable and launch.restarts < launch.max_restarts:
        launch = replace(launch, restarts=launch.restarts + 1)
        _write(launch)
        why = "; ".join(map(_where_and_what, ending.errors))
        events.write("notice", message=f"restart {launch.restarts} of {launch.max_restarts}: {why}")
        started = _restart(launch, leases, events, hub_token, request)
        if started is None:
            break  # the cause of the first failure is the run's
        launch, ending = started
    return replace(ending, seconds=round(time.monotonic() - began, 2))


def _where_and_what(error: dict[str, Any]) -> str:
    rank = "" if error["rank"] is None else f"rank {error['rank']} on "
    return f"{rank}{error['host']}: {error['message']}"


def _restart(
    launch: Launch, leases: Leases, events: EventWriter, hub_token: str, request: StopRequest
) -> tuple[Launch, Ending] | None:
    """Start the ranks again, on the hosts that answer; None where these are too few.

    Returns:
        The launch, without the hosts that were left out, and how it ended.
    """
    deadline = time.monotonic() + launch.timeouts.host_return
    while True:
        try:
            return launch, run_ranks(launch, leases, events, hub_token, request)
        except HostsRefused as error:
            lost = {refusal.host.name for refusal in error.refused}
        left = len(launch.hosts) - len(lost) if launch.hosts[0].name not in lost else 0
        if 0 < launch.min_nodes <= left:
            launch = launch.without(lost)
            _write(launch)
            events.write("notice", message=f"continuing without {', '.join(sorted(lost))}")
        elif time.monotonic() > deadline:
            return None
        else:
            time.sleep(HOST_RETRY_SECONDS)


def _write(launch: Launch) -> None:
    """Write the files of a launch anew, for mpirun and for a supervisor that follows this one."""
    write_atomically(Path(launch.hostfile_path), launch.hostfile)
    folder = Path(launch.run_dir)
    write_atomically(folder / LAUNCH_FILE, json.dumps(launch.to_dict()) + "\n")


def _killed(launch: Launch) -> dict[str, Any]:
    """The fields of an event `error`."""
    host = launch.hosts[0].name
    hint = "the kernel kills processes when memory is short: dmesg; else ask who did"
    return {"message": "the supervisor was killed", "hint": hint, "host": host, "rank": None}


def run_ranks(
    launch: Launch, leases: Leases, events: EventWriter, hub_token: str, request: StopRequest
) -> Ending:
    """Start mpirun and wait until nothing of the run is left on this host.

    Raises:
        HostsRefused, TrainError: no rank was started.
        Stopped: no rank was started.
    """
    request.holding, request.saving = False, None
    request.check()
    stack = own_stack()
    hold_stack(stack)
    launch = launch.with_stack(stack)
    if launch.ssh_config:
        events.write("phase", doing="checking that the head reaches the other hosts")

    def waiting(words: str) -> None:
        events.write("phase", doing=f"waiting: {words}")

    patient = launch.wait or launch.restarts > 0  # a run that has begun is not lost to another one
    _refuse(leases.take(launch, stack, waiting if patient else None))
    sourced = oneccl.variables_for(launch.env, host_path())
    beats = listen_for_guardians(launch)  # before a port is chosen for the rendezvous
    environment = rank_environment(launch.variables, launch.stack, sourced)
    environment[RESTART_VARIABLE] = str(launch.restarts)
    if beats:
        environment |= {ADDRESS: beats.listens_at, SECRET: f"{launch.run_dir}/{GUARD_FILE}"}
    if hub_token:
        _refuse(give(hub_token, launch))
    watch = watch_of(launch, events)
    ending, heard_out = Ending("failed", 1, []), False
    events.write("phase", doing="starting the ranks")
    own = os.getpid()
    process = subprocess.Popen(
        without_credentials(launch.argv, environment, launch.env),
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT if launch.script_ranks is None else subprocess.PIPE,
        start_new_session=True,
        preexec_fn=lambda: processes.end_with_parent(parent=own),
    )
    try:
        request.saving = beats if launch.script_ranks is None else None
        trouble = _read(process, watch, beats, request)
        heard_out = True
        ending = watch.ending(process.wait())
        if any(one.cause != "exit" for one in trouble):  # later errors are its consequence
            errors = [dict(vars(one)) for one in watch.blame(trouble)]
            ending = Ending("failed", ending.exit_code or 1, errors, restartable=True)
        if request.asked and ending.state == "failed":
            ending = replace(ending, state="stopped", exit_code=EXIT_CODE, restartable=False)
    except Stopped:
        ending = Ending("stopped", EXIT_CODE, [])
    finally:
        request.holding = True
        signal.setitimer(signal.ITIMER_REAL, 0)
        if beats:
            beats.close()  # guardians that are left end their ranks, on every host
        end_group(process)
        if ending.state != "done":
            processes.wait_for_end(launch.run)
        kill_rest(launch.run)
        if not heard_out:
            _read_rest(process, watch)
    return ending


def _refuse(refused: list[Refusal]) -> None:
    if refused:
        raise HostsRefused(refused)


def _not_started(refusal: Refusal) -> dict[str, str | None]:
    """The fields of an event `error`."""
    host = refusal.host
    if refusal.in_use:
        message, hint = f"{host.name}: {refusal.reason}", lease.HINT
    else:
        message, hint = f"{host.name} ({host.address}): {refusal.reason}", "no rank was started"
    return {"message": message, "hint": hint, "host": host.name, "rank": None}


def listen_for_guardians(launch: Launch) -> Heartbeats | None:
    """The supervisor's end of the connections to the ranks' guardians.

    Returns:
        None where the run's folder has no GUARD_FILE: the ranks then have no guardians.

    Raises:
        TrainError: no port is free.
    """
    path = Path(launch.run_dir) / GUARD_FILE
    if not path.exists():
        return None
    secret = path.read_text(encoding="ascii").strip()
    address = launch.hosts[0].address
    return Heartbeats(
        address, free_port(), secret, launch.rank_hosts, time.monotonic(), launch.timeouts,
        launch.hang_seconds,
    )  # fmt: skip


def launcher_gone(process: "subprocess.Popen[bytes]", lives: Sequence[RankLife]) -> list[Trouble]:
    """Whether mpirun was killed, and not because a rank had ended.

    mpirun is a script of a shell, which reports so how mpiexec.hydra has ended; after the end of a
    rank by a signal that has another exit code.
    """
    code = process.poll()
    if code not in (-signal.SIGKILL, 128 + signal.SIGKILL) or any(one.exit for one in lives):
        return []
    step = max(one.step for one in lives)
    message = f"mpirun was killed by signal 9 (SIGKILL) at step {step}"
    return [Trouble(lives[0].host, None, step, "signal", message)]


def _read(
    process: "subprocess.Popen[bytes]",
    watch: Watch,
    beats: Heartbeats | None,
    request: StopRequest,
) -> list[Trouble]:
    """Hand mpirun's output to the watch until it ends; returns why the ranks had to be ended.

    After a rank's failure, the others get some time to report theirs before they are ended. Errors
    that ranks report themselves say more than their exit codes.
    """

    def end_ranks(_number: int, _frame: FrameType | None) -> None:
        if process.poll() is None and not asked:
            asked.append(True)
            if beats:  # SIGTERM would have a training's ranks stop at their next step
                beats.send(b"end\n")
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            signal.setitimer(signal.ITIMER_REAL, processes.GRACE_SECONDS)
        else:
            kill_rest(os.environ[RUN_VARIABLE])

    asked: list[bool] = []
    trouble: list[Trouble] = []
    armed = False
    signal.signal(signal.SIGALRM, end_ranks)
    with selectors.DefaultSelector() as selector:
        for name, pipe in (("stdout", process.stdout), ("stderr", process.stderr)):
            if pipe:
                selector.register(pipe, selectors.EVENT_READ, name)
        while selector.get_map():
            for key, _ in selector.select(PAUSE_SECONDS):
                data = os.read(key.fd, 65536)
                if data:
                    watch.feed(key.data, data)
                else:
                    selector.unregister(key.fileobj)
            watch.pause()
            request.check()
            if beats:
                beats.poll(time.monotonic())
            if beats and not (watch.over or trouble):
                trouble = beats.trouble(time.monotonic())
                if trouble:  # mpirun's end is also that of the guardians
                    time.sleep(PAUSE_SECONDS)
                trouble = launcher_gone(process, beats.lives) or trouble
                if any(one.cause == "hung" for one in trouble):
                    beats.send(b"stack\n")
                    time.sleep(PAUSE_SECONDS)  # they are written before SIGTERM comes
                if trouble:
                    beats.send(b"end\n")
            if beats and all(one.exit == 0 for one in beats.lives):  # mpirun may be stopped
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGCONT)
            if (watch.over or trouble) and not armed:
                armed = True
                delay = PAUSE_SECONDS if trouble else processes.GRACE_SECONDS / 2
                signal.setitimer(signal.ITIMER_REAL, delay)
            elif (
                any(one.cause == "host" for one in trouble)
                and beats
                and beats.all_gone(time.monotonic())
            ):
                kill_rest(os.environ[RUN_VARIABLE])  # mpirun waits for the host that was lost
    watch.close()
    if beats and not (watch.over or trouble) and process.wait() != 0:  # between two looks
        for _ in range(3):  # who has connected, what it has said, and that it has hung up
            beats.poll(time.monotonic())
        trouble = launcher_gone(process, beats.lives) or beats.trouble(time.monotonic())
    return trouble


def _read_rest(process: "subprocess.Popen[bytes]", watch: Watch) -> None:
    """Hand over what mpirun had written before it was ended."""
    for name, pipe in (("stdout", process.stdout), ("stderr", process.stderr)):
        if pipe:
            os.set_blocking(pipe.fileno(), False)
            with contextlib.suppress(BlockingIOError):  # another process has it open
                while data := os.read(pipe.fileno(), 65536):
                    watch.feed(name, data)  # type: ignore[arg-type]
    watch.close()


def kept_token(run_dir: Path) -> str:
    """The run's token for the Hub, which the launch has put there; "" for none."""
    path = token_file(run_dir)
    return path.read_text(encoding="ascii").strip() if path.exists() else ""


def forget_token(run_dir: Path) -> None:
    """Remove the run's token for the Hub, where it has one, from all hosts."""
    if token_file(run_dir).exists():
        take_back(read_launch(run_dir))


def start(run_dir: Path, user: str) -> int:
    """Have the run supervised, unless it is or has ended; returns the exit code.

    Args:
        run_dir: the run's folder.
        user: the account, where root starts it; else "".
    """
    if not (background.is_supervised(run_dir) or background.start_unit(run_dir, user)):
        if user:
            return NO_UNIT
        if background.detach():
            os._exit(run(run_dir))
    if background.wait_for_supervisor(run_dir):
        return 0
    print(f"the supervisor does not start: {run_dir}/supervisor.log", file=sys.stderr)
    return 1


def run(run_dir: Path) -> int:
    """Be the run's supervisor; returns the exit code."""
    again = background.become_supervisor(run_dir)
    request = StopRequest()
    write_atomically(run_dir / PID_FILE, f"{os.getpid()}\n")
    try:
        return supervise(run_dir, request, again)
    except BaseException:
        traceback.print_exc()
        return 1


def stop(run_dir: Path) -> str:
    """End a run; returns "stopped", or "not running" where there is none."""
    if has_ended(run_dir):
        return "not running"
    (run_dir / STOP_FILE).touch()  # for one that is just being started
    seen = time.monotonic() if (run_dir / PID_FILE).exists() else float("-inf")
    deadline = time.monotonic() + SAVE_SECONDS + 3 * processes.GRACE_SECONDS
    asked = None
    while time.monotonic() < deadline:
        pid = background.supervisor_of(run_dir)
        if pid is None and has_ended(run_dir):
            return "stopped"
        if pid is None and time.monotonic() - seen > background.BACK_SECONDS:
            return "not running"
        if pid is not None:
            seen = time.monotonic()
        if pid not in (None, asked):
            asked = pid
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        time.sleep(0.1)
    raise SystemExit(f"the supervisor (process {asked}) does not end")


def main() -> int:
    """Entry point; returns the exit code."""
    verb, folder, *options = sys.argv[1:]
    run_dir = Path(folder)
    if verb == "start":
        return start(run_dir, options[1] if options[:1] == ["--user"] else "")
    if verb == "supervise":
        return run(run_dir)
    if verb == "sweep":
        print(f"ended {len(kill_rest(run_dir.name))}")
        token_file(run_dir).unlink(missing_ok=True)
    else:
        print(stop(run_dir))
        forget_token(run_dir)  # where the supervisor was killed
    return 0


if __name__ == "__main__":
    sys.exit(main())
