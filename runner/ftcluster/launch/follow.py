"""Launches a run, follows it to its end, and stops it.

The head's supervisor runs it. The control node only has its events.jsonl, which the playbook copies
while it grows.
"""

import contextlib
import getpass
import os
import platform
import secrets
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ansible_collections.ftcluster.cluster.plugins.plugin_utils.answers import SUPERVISOR_GONE

from ftcluster.ansible.answers import CLUSTER_CHANGED, RUN_STOPPED, SET_FACT, take
from ftcluster.ansible.playbook import REFUSE, Outcome, TaskEvent, run_playbook
from ftcluster.ansible.playbooks import FOLLOW, Attach, Launched, Playbook, RunEvents, Stop
from ftcluster.ansible.settings import for_hosts
from ftcluster.ansible.signals import Interrupts
from ftcluster.cluster.saved import Cluster, learn
from ftcluster.errors import (
    ClusterChanged,
    Detached,
    FtclusterError,
)
from ftcluster.launch.events import EventReader, OutputPipe
from ftcluster.launch.record import (
    begin_events,
    begin_record,
    complete_record,
    end_of,
    events_file,
    record_dir,
)
from ftcluster.launch.run import RUN_LIMIT_SECONDS, Followed, Run
from ftcluster.launch.run_hosts import RunHosts
from ftcluster.paths import plain_name
from ftcluster.progress.state import RunProgress
from ftcluster.progress.view import View
from ftcluster_common import __version__
from ftcluster_common.protocol.launch import SLURM_VARIABLE, pack_env
from ftcluster_common.protocol.run_state import RunState

STOP_LIMIT_SECONDS = 3600  # the supervisor has its own, by the grace time of the run
RECONNECT_LIMIT_SECONDS = 900.0  # for a head that does not answer; the run continues meanwhile
RECONNECT_PAUSE_SECONDS = 5.0
# what does nothing on a host; of a run that follows, its events say more
NO_WORK = (FOLLOW, REFUSE, "ansible.builtin.debug", SET_FACT)
SHOWN_SECONDS = 1.0  # a task that takes longer is shown


def new_run_id(name: str) -> str:
    """An id with name, time and a random part, because a cluster may have several control nodes.

    For example quickstart-20260131-101500-7f3a.
    """
    while True:
        run = f"{plain_name(name)}-{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
        if not record_dir(run).exists():
            return run


def launch_and_follow(
    run: Run,
    view: View,
    connection_options: tuple[str, ...],
    on_event: Callable[[dict[str, Any]], None] = lambda _: None,
    cancelled: Callable[[], bool] = lambda: False,
    detach: bool = False,
    head_seconds: float = RECONNECT_LIMIT_SECONDS,
    may_detach: bool = True,
) -> Followed:
    """Launch a run and follow it to its end; Ctrl-C stops it, or detaches from it.

    SIGTERM and SIGHUP detach once it is launched: a control node that restarts, or a connection
    that is lost, ends no training. In a Slurm job they stop it, as Slurm means them.

    Args:
        connection_options: arguments of ansible-playbook that say how to reach the hosts.
        on_event: called for each of the run's events.
        cancelled: called several times a second; true ends the run as Ctrl-C does.
        detach: whether to return once it is launched.
        head_seconds: how long a head that does not answer is waited for.
        may_detach: whether Ctrl-C asks, and other signals detach; else each stops the run.

    Raises:
        ClusterChanged: the head has another stack or record than the plan was made of, so nothing
            was started.
        Detached: a signal has ended this command only.
        FtclusterError: it was to be stopped, and may still be running.
    """
    begin_record(run.id, _record(run))
    hosts = run.cluster.addressed([host.name for host in run.plan.prepared])
    run_hosts = RunHosts(
        run.cluster.inventories, hosts, run.plan.rank_user, run.plan.prefix, connection_options
    )
    known = run.cluster.known
    settled = run.cluster.slurm_job or run_hosts.is_here_as(known)
    launch = Launched(
        train_launch=replace(run.launch, started_by=this_user()).to_dict(),
        train_job=run.job,
        train_follow=not detach,
        train_guard=secrets.token_hex(16),
        train_version=__version__,
        train_known={} if settled else known,
        train_secret_env=pack_env(run.secrets),
    )
    with _output() as output:
        output.begin()
        playbook = run.playbook(_events_of(run_hosts, run.id, output), launch)
        followed = _follow(
            playbook, run_hosts, run.id, output, view, on_event, cancelled, head_seconds, may_detach
        )
    if followed.changed:
        shutil.rmtree(record_dir(run.id))  # it was not started
        raise _changed(run.cluster, followed.changed)
    launched = detach and followed.outcome.state == "done"
    return replace(followed, detached=followed.detached or launched)


def _changed(before: Cluster, answer: Mapping[str, Any]) -> ClusterChanged:
    """The error that says what has changed, which is saved for the next plan.

    Raises:
        FtclusterError: the head's answer is none.
    """
    from ftcluster.stacks.catalog import load_stacks  # as below

    stack, stacks = str(answer.get("stack")), load_stacks()
    if stack not in stacks:
        raise FtclusterError(
            f"{before.facts.head.name} has the stack {stack!a}, which this ftcluster does not know",
            "install the ftcluster that set it up; for a list: ftcluster stacks",
        )
    now = before.with_record(answer.get("record"))
    learn(before.inventories, stack, answer.get("record"))
    had, has = before.facts.head.stack, list(now.drained)
    what = [f"stack {had} -> {stack}"] if stack != had else []
    if has != list(before.drained):
        what.append(f"drained: {', '.join(has) or 'none'}")
    return ClusterChanged(
        "the cluster was changed from elsewhere: "
        + ("; ".join(what) or "other measurements of it"),
        "nothing was started; run it again, which plans for the cluster as it is now",
    )


def this_user() -> str:
    """Who runs this command, and where: `ops on bastion`."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # an account without a name
        name = str(os.getuid())
    return f"{name} on {platform.node()}"


def attach(
    run_hosts: RunHosts,
    run: str,
    view: View,
    on_event: Callable[[dict[str, Any]], None] = lambda _: None,
) -> Followed:
    """Follow a run that was launched before, from its first event to its end; never stops it.

    Raises:
        Detached: a signal, such as that of Ctrl-C, has ended this command only.
    """
    with _output() as output:
        playbook = Attach(_events_of(run_hosts, run, output))
        return _follow(
            playbook, run_hosts, run, output, view, on_event, lambda: False, RECONNECT_LIMIT_SECONDS
        )


@contextlib.contextmanager
def _output() -> Iterator[OutputPipe]:
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.closing(OutputPipe(Path(folder))) as pipe,
    ):
        yield pipe


def _events_of(run_hosts: RunHosts, run: str, output: OutputPipe | None = None) -> RunEvents:
    path = str(output.path) if output else ""
    return RunEvents(run_hosts.at(run), str(events_file(run)), path)


def _follow(
    playbook: Playbook,
    run_hosts: RunHosts,
    run: str,
    output: OutputPipe,
    view: View,
    on_event: Callable[[dict[str, Any]], None],
    cancelled: Callable[[], bool],
    head_seconds: float,
    may_detach: bool = True,
) -> Followed:
    begin_events(run)
    progress = RunProgress(run=run)
    reader = EventReader(events_file(run))
    launched = False  # whether the head has written an event
    attaches = isinstance(playbook, Attach)
    goes_on = attaches  # whether the run has a supervisor, for which this one is nothing
    task, began = "", 0.0  # that is not shown yet: it may take no time
    changed: Mapping[str, Any] | None = None

    def on_task(event: TaskEvent) -> None:
        nonlocal task, began, changed, goes_on
        goes_on = goes_on or event.action == FOLLOW
        if event.host == run_hosts.head and (answer := take(CLUSTER_CHANGED, event)):
            (changed,) = answer
        if event.kind == "task":
            task = "" if event.action in NO_WORK else event.task[:1].lower() + event.task[1:]
            began = time.monotonic()
        view.task_event(event)

    def add(event: dict[str, Any]) -> None:
        progress.add(event)
        view.run_event(progress, event["event"])
        on_event(event)

    def on_tick() -> None:
        nonlocal launched, task
        events = reader.new_events()  # what a script has printed before these is in the pipe
        for event in (*output.new_events(), *events):
            launched = True
            add(event)
        if task and time.monotonic() - began > SHOWN_SECONDS:
            if not launched:
                add({"event": "phase", "doing": task})
            task = ""
        view.tick()

    def play(playbook: Playbook) -> Outcome:
        outcome = run_playbook(
            playbook.qualified,
            run_hosts.inventories,
            playbook.variables(),
            on_task,
            options=(*run_hosts.limit, *run_hosts.options),
            on_tick=on_tick,
            cancelled=lambda: interrupts.count > 0 or cancelled(),
            time_limit_seconds=RUN_LIMIT_SECONDS,
            settings=for_hosts(len(run_hosts.hosts)),
        )
        on_tick()
        return outcome

    def head_lost() -> bool:
        off = ("unreachable", run_hosts.head) in [
            (failure.kind, failure.host) for failure in outcome.failures
        ]
        return off and launched and not progress.ended and outcome.state == "failed"

    def lost() -> str:
        """What keeps this command from following the run, which has not ended; "" for nothing."""
        if not launched or progress.ended or outcome.state != "failed":
            return ""
        if head_lost():
            return (
                f"{run_hosts.head} does not answer; the run continues there. Connecting again ..."
            )
        gone = any(
            (failure.action, failure.host) == (FOLLOW, run_hosts.head)
            and SUPERVISOR_GONE in failure.message  # else it is this machine's trouble
            for failure in outcome.failures
        )
        return f"the supervisor on {run_hosts.head} is gone. Starting it again ..." if gone else ""

    detached = False
    with Interrupts() as interrupts:
        outcome = play(playbook)
        came, deadline = reader.offset, time.monotonic() + head_seconds
        while not interrupts.count and (why := lost()) and time.monotonic() < deadline:
            view.say(why)
            time.sleep(RECONNECT_PAUSE_SECONDS)
            outcome = play(Attach(_events_of(run_hosts, run, output)))
            if reader.offset > came:
                came, deadline = reader.offset, time.monotonic() + head_seconds
        cut_off = goes_on and not progress.ended and outcome.state == "failed"
        if interrupts.count and cut_off:  # the same signal has ended Ansible's own processes
            outcome = replace(outcome, state="stopped")
        if outcome.state == "stopped":
            view.close()
    if outcome.state == "stopped" and attaches:
        if not progress.ended:
            raise Detached(run, interrupts.first, progress.document())
        outcome = replace(outcome, state="done")
    if outcome.state == "stopped" and goes_on and may_detach and not cancelled():
        if interrupts.first != signal.SIGINT and SLURM_VARIABLE not in os.environ:
            raise Detached(run, interrupts.first, progress.document())
        detached = launched and _wants_to_detach(run, view)
    if outcome.state == "stopped" and not detached:
        with Interrupts() as interrupts:
            view.say("stopping the ranks ... (press Ctrl-C again to leave at once)")
            # Slurm sends SIGTERM several times
            patient = SLURM_VARIABLE in os.environ
            stop(
                run_hosts, run, on_tick, lambda: interrupts.count > 0 and not patient, output=output
            )
    view.close()
    if progress.ended:
        complete_record(run, end_of(progress))
    return Followed(progress, outcome, detached, head_lost(), changed)


def _wants_to_detach(run: str, view: View) -> bool:
    """Ask whether a run continues; without an answer it does not."""
    question = f"run {run} is still running: [d]etach from it, or [s]top it? "
    try:
        return view.ask(question).lower() in ("d", "detach")
    except KeyboardInterrupt:
        return False


def stop(
    run_hosts: RunHosts,
    run: str,
    on_tick: Callable[[], None] = lambda: None,
    cancelled: Callable[[], bool] = lambda: False,
    force: bool = False,
    output: OutputPipe | None = None,
) -> RunState | None:
    """End a run on its head, and what is left of it on the other hosts.

    Returns what the head says of it then, if it knows of it.

    Args:
        force: whether to end the supervisor as well, without waiting for it or for hosts that do
            not answer.
        on_tick: called several times a second.
        cancelled: called several times a second; true returns before it has ended.
        output: gets what a script prints at its end.

    Raises:
        FtclusterError: it may still be running; says how to end it.
    """
    begin_events(run)
    playbook = Stop(_events_of(run_hosts, run, output), force)
    listed: list[RunState] = []

    def on_event(event: TaskEvent) -> None:
        if event.host == run_hosts.head and (answer := take(RUN_STOPPED, event)):
            listed.extend(one for one in answer[0][0] if one.run == run)

    outcome = run_playbook(
        playbook.qualified,
        run_hosts.inventories,
        playbook.variables(),
        on_event,
        options=(*run_hosts.limit, *run_hosts.options),
        on_tick=on_tick,
        cancelled=cancelled,
        time_limit_seconds=STOP_LIMIT_SECONDS,
        settings=for_hosts(len(run_hosts.hosts)),
    )
    if outcome.state != "done":
        reasons = "".join(f"\n  {failure.host}: {failure.message}" for failure in outcome.failures)
        raise FtclusterError(
            f"run {run} could not be stopped and may still be running{reasons}",
            "" if force else f"end it without its supervisor: ftcluster stop --force {run}",
        )
    return listed[0] if listed else None


def _record(run: Run) -> dict[str, Any]:
    """Everything that is known before the launch."""
    from ftcluster.planning.backends import stack_of  # what follows a run needs no plan of one
    from ftcluster.stacks.catalog import load_stacks

    names = {host.name for host in run.plan.prepared}
    facts = run.cluster.facts
    stack = stack_of(facts, load_stacks())
    return {
        "kind": run.kind,
        "command": list(run.command),
        "inventories": [str(path.absolute()) for path in run.cluster.inventories],
        "options": run.cluster.options,
        "slurm_job": run.cluster.slurm_job,
        "facts": [asdict(host) for host in facts.hosts if host.name in names],
        "stack": {"name": stack.name, "packages": stack.packages},
        "plan": asdict(run.plan),
        "launch": run.launch.shown(),
        **run.record(),
    }
