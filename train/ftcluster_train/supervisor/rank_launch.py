"""Starts a run's ranks with mpirun, and watches them until the last process has ended.

Standard library only.
"""

import contextlib
import os
import resource
import selectors
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import IO, Any

from ftcluster_common.protocol.launch import (
    GUARD_FILE,
    RESTART_VARIABLE,
    RUN_VARIABLE,
    Launch,
    mpirun_command,
)
from ftcluster_common.protocol.run_state import WAITS
from ftcluster_train.comm import torch_backends
from ftcluster_train.errors import TrainError
from ftcluster_train.io import processes
from ftcluster_train.io.events import EventWriter
from ftcluster_train.io.fsync import write_atomically
from ftcluster_train.io.mpi_output import Stream
from ftcluster_train.io.stack import hold_stack, own_stack
from ftcluster_train.rank.guardian import ADDRESS, SECRET
from ftcluster_train.supervisor import lease
from ftcluster_train.supervisor.heartbeats import (
    STOPPED_EXIT_CODE,
    STOPS,
    UNGREETED,
    Heartbeats,
    Stopped,
    StopRequest,
)
from ftcluster_train.supervisor.leases import Leases, firewall_notice
from ftcluster_train.supervisor.link_check import LinkCheck, Links
from ftcluster_train.supervisor.metrics_file import MetricsFile
from ftcluster_train.supervisor.monitors import Ending, Watch, watch_of
from ftcluster_train.supervisor.rank_environment import (
    free_port,
    give_secrets,
    hold_port,
    host_path,
    rank_environment,
    without_credentials,
)
from ftcluster_train.supervisor.rank_life import RankLife, Trouble, idle_seconds, out_of_memory
from ftcluster_train.supervisor.slow_hosts import SlowHostWatch
from ftcluster_train.supervisor.ssh_causes import LINK
from ftcluster_train.supervisor.ssh_check import HostFailure, unreached_hosts
from ftcluster_train.supervisor.stop_causes import (
    SHUTDOWN,
    by_signal_to_rank,
    first_signalled,
    is_pending,
)

PAUSE_SECONDS = 0.2
VERDICT_SECONDS = 3.0  # longest wait for a guardian that queries systemd about a shutdown
LAST_NEWS_SECONDS = 1.0  # longest wait for a guardian's reason after mpirun has failed
MEMORY_HINT = "the kernel kills processes when memory is short, see dmesg on the head"
FILES_A_HOST = 4  # pipes to the ssh of a lease; mpirun opens as many to its own ssh
OTHER_FILES = 128 + UNGREETED
LINK_CAUSE = "link"  # `cause` of an event `error` about hosts that do not reach each other


class HostsRefused(Exception):
    """No rank can be started on these hosts."""

    def __init__(self, refused: list[HostFailure]) -> None:
        super().__init__()
        self.refused = refused


def refusal_fields(refusal: HostFailure) -> dict[str, Any]:
    """Return the fields of an event `error` about a host that a run cannot use."""
    host = refusal.host
    if refusal.in_use:
        message, hint = f"{host.name}: {refusal.reason}", lease.HINT
    elif refusal.cause == LINK:
        message, hint = refusal.reason, LINK.remedy
    else:
        message = f"{host.name} ({host.address}): {refusal.reason}"
        hint = refusal.cause.remedy if refusal.cause else ""
    return {"message": message, "hint": hint, "host": host.name, "rank": None}


@dataclass(frozen=True)
class SupervisedRun:
    """State that all starts of a run's ranks share.

    Attributes:
        secrets: contents of the secret files by file name, see `take_secrets`.
    """

    leases: Leases
    events: EventWriter
    secrets: Mapping[str, str]
    request: StopRequest
    metrics: MetricsFile


def run_ranks(launch: Launch, run: SupervisedRun, notice: str = "") -> Ending:
    """Start mpirun and wait until no process of the run is left on this host.

    Args:
        notice: message for users, written once the hosts are known to answer; "" for none.

    Raises:
        HostsRefused, TrainError: no rank was started.
        Stopped: no rank was started.
    """
    request, events = run.request, run.events
    request.holding, request.saving = False, None
    request.check()
    make_room_for_files(len(launch.rank_hosts), len(launch.hosts + launch.idle))
    stack = own_stack()
    hold_stack(stack)
    launch = replace(launch, stack=str(stack))  # setup may change the link during the run
    if launch.ssh_config:
        events.write("phase", doing="checking that the head reaches the other hosts")
        needed = launch.hosts[1:] if launch.restarts else launch.hosts[1:] + launch.idle
        _refuse(unreached_hosts(needed, launch.ssh_config, launch.timeouts.ssh))
    _take_hosts(launch, run, stack)
    if notice:
        events.write("notice", message=notice)
    sourced = torch_backends.variables_for(launch.env, host_path())
    _refuse(give_secrets(run.secrets, launch))  # before the start, whose time is limited
    beats = listen_for_guardians(launch)  # opens its port before the rendezvous reserves one
    command = mpirun_command(launch)
    write_atomically(Path(launch.hostfile_path), command.hostfile)
    variables = command.env | launch.supervised_variables
    rendezvous = hold_port()
    environment = rank_environment(variables, launch.stack, sourced, rendezvous)
    environment[RESTART_VARIABLE] = str(launch.restarts)
    environment |= {ADDRESS: beats.listens_at, SECRET: f"{launch.run_dir}/{GUARD_FILE}"}
    watch = watch_of(launch, events)
    ending, heard_out = Ending("failed", 1, []), False
    links = LinkCheck(launch)
    events.write("phase", doing="starting the ranks")
    supervisor_pid = os.getpid()
    process = subprocess.Popen(
        without_credentials(command.argv, environment, command.env),
        env=environment,
        cwd="/",  # the ranks start there too, and Python imports from the current folder
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE if launch.script else subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=lambda: _begin_child(supervisor_pid),
    )
    try:
        request.saving = None if launch.script else beats
        request.grace_seconds = launch.grace_seconds
        request.repeated = bool(launch.slurm_job)  # Slurm signals every process, several times
        slow = SlowHostWatch(Path(launch.run_dir), events, beats.lives)

        def on_beat() -> None:
            run.metrics.tick(launch, beats.lives)
            if run.metrics.ends:
                run.leases.expect_end(run.metrics.ends)
            slow.tick()

        trouble = _read(process, watch, beats, request, on_beat, links.watch)
        heard_out = True
        ending = _ending_of(process.wait(), trouble, watch, beats, request)
        if ending.state != "done" and not request.asked:
            poll_while(beats, lambda: any(map(is_pending, beats.lives)), VERDICT_SECONDS)
            clock = time.time() - time.monotonic()
            ending = explained(ending, beats.lives, launch.hosts[0].name, clock)
    except Stopped:
        ending = Ending("stopped", STOPPED_EXIT_CODE, [])
    finally:
        request.holding = True
        signal.setitimer(signal.ITIMER_REAL, 0)
        rendezvous.close()
        beats.close()  # the remaining guardians end their ranks, on every host
        processes.end_group(process)
        if ending.state != "done":
            processes.wait_for_end(launch.run)
        processes.kill_rest(launch.run)
        if not heard_out:
            _read_rest(process, watch)
    if ending.state == "failed" and launch.ssh_config:
        causes = {error.get("cause", "exit") for error in ending.errors}
        if any(life.heard is None for life in beats.lives) and causes <= {"exit", "host"}:
            ending = explained_by_ssh(ending, launch)
        elif not causes.isdisjoint(("hung", "exit")):
            ending = explained_by_links(ending, links.result())
    return ending


def explained_by_ssh(ending: Ending, launch: Launch) -> Ending:
    """Return the ending of a launch in which mpirun did not start all ranks, with the cause.

    mpirun suppresses the messages of ssh, so the head connects to the hosts once more.
    """
    refused = unreached_hosts(launch.hosts[1:], launch.ssh_config, launch.timeouts.ssh)
    if refused:
        restartable = not any(failure.lasting for failure in refused)
        return replace(ending, errors=list(map(refusal_fields, refused)), restartable=restartable)
    if launch.restarts and all(error["rank"] is None for error in ending.errors):
        return replace(ending, restartable=True)  # the same launch worked before
    return ending


def explained_by_links(ending: Ending, links: Links) -> Ending:
    """Return a failed run's ending, with the pairs of hosts that do not reach each other.

    Ranks that hang are not to blame if such a pair exists, and a restart may help once the link is
    back.
    """
    hung = all(error.get("cause") == "hung" for error in ending.errors)
    if links.gaps:
        step = max((int(error.get("step", 0)) for error in ending.errors), default=0)
        at = f" at step {step}" if step else ""
        message = links.sentence() + (f"; the ranks wait for each other{at}" if hung else "")
        host = links.gaps[0].host.name
        trouble = vars(Trouble(host, None, step, LINK_CAUSE, message, LINK.remedy))
        return replace(
            ending, errors=[dict(trouble), *(() if hung else ending.errors)], restartable=True
        )
    if hung and links.sentence():
        first, *others = ending.errors
        message = f"{first['message']}; {links.sentence()}"
        return replace(ending, errors=[{**first, "message": message}, *others])
    return ending


def _begin_child(parent: int) -> None:
    """Prepare the process that becomes mpirun: the supervisor itself has blocked these signals."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
    processes.end_with_parent(parent=parent)


def _ending_of(
    code: int,
    trouble: list[Trouble],
    watch: Watch,
    beats: Heartbeats,
    request: StopRequest,
) -> Ending:
    """Return how a run has ended.

    Args:
        code: exit status of mpirun, as subprocess returns it.
        trouble: troubles that guardians have reported.
    """
    code = code if code >= 0 else 128 - code  # after a signal, a shell's exit code
    # mpirun's own exit code does not matter if all ranks have ended well
    ending = watch.ending(0 if beats.all_done else code)
    if any(problem.cause != "exit" for problem in trouble):  # the trouble caused all later errors
        errors = [dict(vars(problem)) for problem in watch.blame(trouble)]
        ending = Ending("failed", ending.exit_code or 1, errors, restartable=True)
    if request.asked and ending.state == "failed":
        ending = replace(ending, state="stopped", exit_code=STOPPED_EXIT_CODE, restartable=False)
    return ending


def explained(ending: Ending, lives: Sequence[RankLife], head: str, clock: float) -> Ending:
    """Return an ending with the sender of the signal that caused it, if there was a signal.

    A host that is shutting down counts as lost, even if the ranks could save their state.

    Args:
        head: name of the head, whose shutdown ends the run.
        clock: seconds since 1970 minus the supervisor's clock.
    """
    life = first_signalled(lives)
    if life is None or life.received is None:
        return ending
    cause = by_signal_to_rank(life, life.received, clock)
    if cause.cause == SHUTDOWN and life.host == head:
        return Ending("stopped", STOPPED_EXIT_CODE, [], cause=cause)
    if cause.cause == SHUTDOWN:
        hint = f"{life.host} is used again when it answers"
        trouble = Trouble(life.host, None, life.step, SHUTDOWN, cause.message, hint)
        return Ending("failed", 1, [dict(vars(trouble))], restartable=True)
    if ending.state == "stopped":
        return replace(ending, cause=cause)
    errors = [
        {**error, "hint": "; ".join(filter(None, (cause.message, error["hint"])))}
        if error["rank"] == life.rank
        else error
        for error in ending.errors
    ]
    return replace(ending, errors=errors)


def poll_while(beats: Heartbeats, waits: Callable[[], bool], limit_seconds: float) -> None:
    """Read the guardians' messages while a condition holds, at most for `limit_seconds`."""
    deadline = time.monotonic() + limit_seconds
    while True:
        beats.poll(time.monotonic())
        if not waits() or time.monotonic() > deadline:
            return
        time.sleep(PAUSE_SECONDS / 10)


def _take_hosts(launch: Launch, run: SupervisedRun, stack: Path) -> None:
    """Take the leases of the run's hosts, and log which hosts have no firewall rules.

    Raises:
        HostsRefused: a host belongs to another run.
    """
    events = run.events

    def waiting(place_and_hosts: str) -> None:
        events.write("phase", doing=f"{WAITS}{place_and_hosts}")

    # A restart waits for the run's hosts, unless it can use idle hosts instead.
    patient = launch.wait or (launch.restarts > 0 and not launch.idle)
    if not launch.slurm_job:  # Slurm gives a job's hosts to no other job
        _refuse(run.leases.take(launch, stack, waiting if patient else None))
        for name in run.leases.without_rules if len(launch.hosts) > 1 else ():
            events.write("notice", message=firewall_notice(name))


def _refuse(refused: list[HostFailure]) -> None:
    if refused:
        raise HostsRefused(refused)


def listen_for_guardians(launch: Launch) -> Heartbeats:
    """Open the supervisor's end of the connections to the ranks' guardians.

    Raises:
        TrainError: no port is free.
    """
    secret = (Path(launch.run_dir) / GUARD_FILE).read_text(encoding="ascii").strip()
    return Heartbeats(
        launch.hosts[0].address, free_port(), secret, launch.rank_hosts, time.monotonic(),
        launch.timeouts, launch.hang_seconds,
    )  # fmt: skip


def make_room_for_files(ranks: int, hosts: int) -> None:
    """Raise the file limit of this process and mpirun to what the ranks and hosts need.

    Raises:
        TrainError: the account may not open so many files.
    """
    wanted = ranks + FILES_A_HOST * hosts + OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if resource.RLIM_INFINITY in (soft, hard) or hard >= wanted:
        if soft != resource.RLIM_INFINITY and soft < wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return
    raise TrainError(
        f"a process on {socket.gethostname()} can open {hard} files, but {ranks} ranks on {hosts} "
        f"hosts need {wanted}",
        "raise the account's hard limit of open files (nofile) there, see limits.conf(5)",
    )


def launcher_gone(process: "subprocess.Popen[bytes]", lives: Sequence[RankLife]) -> list[Trouble]:
    """Return a Trouble if mpirun was killed although no rank had ended; else an empty list.

    mpirun is a shell script that exits with the code of mpiexec.hydra. After the end of a rank,
    mpiexec.hydra never exits with SIGKILL's code.
    """
    code = process.poll()
    if code not in (-signal.SIGKILL, 128 + signal.SIGKILL) or any(live.exit for live in lives):
        return []
    step = max(live.step for live in lives)
    message = f"mpirun was killed by signal 9 (SIGKILL) at step {step}"
    return [Trouble(lives[0].host, None, step, "signal", message, MEMORY_HINT)]


def _find_trouble(process: "subprocess.Popen[bytes]", beats: Heartbeats) -> list[Trouble]:
    """Return the troubles of mpirun or of the ranks; if any, have the guardians end the ranks."""
    trouble = beats.trouble(time.monotonic())
    if trouble:  # guardians also end after mpirun, whose exit code may be late
        time.sleep(PAUSE_SECONDS)
    trouble = launcher_gone(process, beats.lives) or trouble
    if any(rank.cause == "hung" for rank in trouble):
        beats.send(b"stack\n")
        time.sleep(PAUSE_SECONDS)  # the stacks must be written before SIGTERM arrives
    if trouble:
        beats.send(b"end\n")
    return trouble


def _read(
    process: "subprocess.Popen[bytes]",
    watch: Watch,
    beats: Heartbeats,
    request: StopRequest,
    on_beat: Callable[[], None],
    on_idle: Callable[[float], None],
) -> list[Trouble]:
    """Pass mpirun's output to the watch until the output ends; return why ranks had to be ended.

    After a rank's failure, the other ranks get some time to report their failures before they are
    ended. Errors that ranks report themselves are more useful than their exit codes.

    Args:
        on_beat: called after each check of the ranks.
        on_idle: called with the seconds for which no rank has been active.
    """

    def end_ranks(_number: int, _frame: FrameType | None) -> None:
        if process.poll() is None and not asked:
            asked.append(True)
            beats.send(b"end\n")  # after SIGTERM alone, a training's ranks end at their next step
            processes.signal_group(process, signal.SIGTERM)
            signal.setitimer(signal.ITIMER_REAL, processes.GRACE_SECONDS)
        else:
            processes.kill_rest(os.environ[RUN_VARIABLE])

    asked: list[bool] = []
    trouble: list[Trouble] = []
    armed, looked = False, 0.0
    signal.signal(signal.SIGALRM, end_ranks)
    with selectors.DefaultSelector() as selector:
        for name, pipe in _pipes(process):
            selector.register(pipe, selectors.EVENT_READ, name)
        while selector.get_map():
            for key, _ in selector.select(PAUSE_SECONDS):
                if data := os.read(key.fd, 65536):
                    watch.feed(key.data, data)
                else:
                    selector.unregister(key.fileobj)
            watch.pause()
            request.check()
            # hundreds of ranks may write thousands of pieces of output a second
            if selector.get_map() and time.monotonic() - looked < PAUSE_SECONDS:
                continue
            looked = time.monotonic()
            beats.poll(looked)
            on_beat()
            if not (watch.over or trouble):
                on_idle(idle_seconds(beats.lives, looked))
                trouble = _find_trouble(process, beats)
            if beats.all_done:  # mpirun may be stopped
                processes.signal_group(process, signal.SIGCONT)
            silent = any(problem.cause in ("host", "stopped") for problem in trouble)
            if (watch.over or trouble) and not armed:
                armed = True
                delay = PAUSE_SECONDS if trouble else processes.GRACE_SECONDS / 2
                signal.setitimer(signal.ITIMER_REAL, delay)
            elif silent and beats.all_gone(time.monotonic()):
                processes.kill_rest(os.environ[RUN_VARIABLE])  # mpirun would wait
    watch.close()
    if not trouble and process.wait() != 0:  # mpirun failed since the last check
        for _ in range(3):  # a poll each for a connection, its messages and its end
            beats.poll(time.monotonic())
        if watch.over:  # the rank's own report lacks the reason of a SIGKILL
            return out_of_memory(beats.lives)
        poll_while(beats, lambda: not any(map(_has_news, beats.lives)), LAST_NEWS_SECONDS)
        trouble = launcher_gone(process, beats.lives) or beats.trouble(time.monotonic())
    return trouble


def _has_news(life: RankLife) -> bool:
    """Return True if a guardian has reported why its rank ends."""
    return life.received is not None or life.exit is not None or life.lost


def _read_rest(process: "subprocess.Popen[bytes]", watch: Watch) -> None:
    """Pass the output that mpirun wrote before its end to the watch."""
    for name, pipe in _pipes(process):
        os.set_blocking(pipe.fileno(), False)
        with contextlib.suppress(BlockingIOError):  # another process has it open
            while data := os.read(pipe.fileno(), 65536):
                watch.feed(name, data)
    watch.close()


def _pipes(process: "subprocess.Popen[bytes]") -> Iterator[tuple[Stream, IO[bytes]]]:
    """Yield mpirun's pipes. A training run has only stdout, which also carries stderr."""
    if process.stdout:
        yield "stdout", process.stdout
    if process.stderr:
        yield "stderr", process.stderr
