"""Launch a run, follow it to its end, and stop it.

The head's supervisor controls the run. The control node only reads events.jsonl, which a playbook
copies from the head as the file grows.
"""

import contextlib
import getpass
import os
import platform
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ansible_collections.ftcluster.cluster.plugins.plugin_utils.answers import SUPERVISOR_GONE

from ftcluster.ansible.answers import CLUSTER_CHANGED, RUN_STOPPED, SET_FACT, take
from ftcluster.ansible.failures import without_warnings
from ftcluster.ansible.host_keys import refused_hosts
from ftcluster.ansible.playbook import REFUSE, PlaybookOutcome, TaskEvent
from ftcluster.ansible.playbooks import FOLLOW, Attach, Launched, Playbook, RunEvents, Stop
from ftcluster.ansible.signals import Interrupts
from ftcluster.cluster.saved import Cluster, learn
from ftcluster.errors import (
    ClusterChanged,
    Detached,
    FtclusterError,
)
from ftcluster.launch.events import EventReader, OutputPipe
from ftcluster.launch.follow_states import (
    PLAYS,
    RECONNECTS,
    Event,
    FollowState,
    after,
    outcome_event,
    request_of,
)
from ftcluster.launch.record import (
    begin_events,
    begin_record,
    complete_record,
    end_of,
    events_file,
    record_dir,
)
from ftcluster.launch.run import RUN_LIMIT_SECONDS, ClusterRun, Followed
from ftcluster.launch.run_hosts import RunHosts, play_on
from ftcluster.paths import plain_name
from ftcluster.progress.state import RunProgress
from ftcluster.progress.view import View
from ftcluster.text.host_names import with_host
from ftcluster_common import __version__
from ftcluster_common.protocol.formats import JOB, LAUNCH, RUN_FORMAT, later_fields
from ftcluster_common.protocol.launch import SLURM_VARIABLE, pack_env
from ftcluster_common.protocol.run_state import WAITS, RunState

STOP_LIMIT_SECONDS = 3600  # a last resort, because the supervisor limits the grace time
RECONNECT_LIMIT_SECONDS = 900.0  # time to wait for a head that does not respond
RECONNECT_PAUSE_SECONDS = 5.0
# actions whose tasks are not shown, because they do no work that the user waits for
NO_WORK = (FOLLOW, REFUSE, "ansible.builtin.debug", SET_FACT)
SHOWN_SECONDS = 1.0  # minimum duration of a task before it is shown


def new_run_id(name: str) -> str:
    """Return a new id that consists of a name, the time and a random part.

    For example quickstart-20260131-101500-7f3a. The random part makes ids unique if a cluster has
    several control nodes.
    """
    while True:
        run = f"{plain_name(name)}-{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
        if not record_dir(run).exists():
            return run


def launch_and_follow(
    run: ClusterRun,
    view: View,
    connection_options: tuple[str, ...],
    on_event: Callable[[dict[str, Any]], None] = lambda _: None,
    cancelled: Callable[[], bool] = lambda: False,
    detach: bool = False,
    head_seconds: float = RECONNECT_LIMIT_SECONDS,
    may_detach: bool = True,
) -> Followed:
    """Launch a run and follow it to its end. Ctrl-C stops the run or detaches from it.

    Once the run is launched, SIGTERM and SIGHUP end only this command: neither a restart of the
    control node nor a lost connection may end a training. In a Slurm job, these signals stop the
    run, because Slurm sends them to end the job.

    Args:
        connection_options: arguments of ansible-playbook for reaching the hosts.
        on_event: function that is called with each event of the run.
        cancelled: function that returns True to stop the run. It is called several times a second.
        detach: True to return once the run is launched.
        head_seconds: time in seconds to wait for a head that does not respond.
        may_detach: True if Ctrl-C asks the user and other signals detach; False if all signals stop
            the run.

    Raises:
        ClusterChanged: the head's stack or record has changed since the plan was made, so nothing
            was started.
        Detached: a signal has ended this command only.
        FtclusterError: the run could not be stopped, and may still be running.
    """
    begin_record(run.id, _record(run))
    hosts = run.cluster.addressed([host.name for host in run.plan.prepared])
    run_hosts = RunHosts(
        run.cluster.inventories, hosts, run.plan.rank_user, run.plan.prefix, connection_options
    )
    expected = run.cluster.known
    settled = run.cluster.slurm_job or run_hosts.is_here_as(expected)
    launch_document = replace(run.launch, started_by=this_user()).to_dict()
    launch = Launched(
        train_launch=launch_document,
        train_job=run.job,
        train_follow=not detach,
        train_guard=secrets.token_hex(16),
        train_version=__version__,
        train_format=RUN_FORMAT,
        train_later_fields=[*later_fields(LAUNCH, launch_document), *later_fields(JOB, run.job)],
        train_known={} if settled else expected,
        train_secret_env=pack_env(run.secrets),
        train_webhook=run.webhook,
    )
    with _output() as output:
        output.begin()
        playbook = run.playbook(_events_of(run_hosts, run.id, output), launch)
        follower = Follower(
            run_hosts, run.id, output, view, on_event, cancelled, head_seconds, may_detach
        )
        followed = follower.follow(playbook)
    if followed.changed:
        shutil.rmtree(record_dir(run.id))  # the run was not started
        raise _changed(run.cluster, followed.changed)
    launched = detach and followed.outcome.state == "done"
    return replace(followed, detached=followed.detached or launched)


def _changed(before: Cluster, answer: Mapping[str, Any]) -> ClusterChanged:
    """Save the cluster's change for the next plan, and return the error that describes the change.

    Raises:
        FtclusterError: the head's response is not valid.
    """
    from ftcluster.stacks.catalog import load_stacks  # slow to import

    stack, stacks = str(answer.get("stack")), load_stacks()
    if stack not in stacks:
        raise FtclusterError(
            f"{before.facts.head.name} has the stack {stack!a}, which this version of ftcluster "
            "does not know",
            "install the version of ftcluster that set up the cluster; to list the stacks of this "
            "version: ftcluster stacks",
        )
    now = before.with_record(answer.get("record"))
    learn(before.inventories, stack, answer.get("record"))
    old_stack, drained = before.facts.head.stack, list(now.drained)
    what = [f"stack {old_stack} -> {stack}"] if stack != old_stack else []
    if drained != list(before.drained):
        what.append(f"drained: {', '.join(drained) or 'none'}")
    return ClusterChanged(
        "the cluster was changed from elsewhere: " + ("; ".join(what) or "its measurements"),
        "nothing was started; repeat the command to plan for the changed cluster",
    )


def this_user() -> str:
    """Return the user and the host of this command, such as `ops on bastion`."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # the account has no name
        name = str(os.getuid())
    return f"{name} on {platform.node()}"


def attach(
    run_hosts: RunHosts,
    run: str,
    view: View,
    on_event: Callable[[dict[str, Any]], None] = lambda _: None,
) -> Followed:
    """Follow a run that was launched earlier, from its first event to its end.

    A signal ends this command, and the run continues.

    Raises:
        Detached: a signal, such as Ctrl-C, has ended this command only.
    """
    with _output() as output:
        follower = Follower(run_hosts, run, output, view, on_event)
        return follower.follow(Attach(_events_of(run_hosts, run, output)))


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


class Follower:
    """A follower of one run. It runs playbooks, shows events, and changes its state.

    The module `follow_states` decides the next state.

    Attributes:
        state: current state, see `FollowState`.
        progress: the run's progress, from its events so far.
    """

    def __init__(
        self,
        run_hosts: RunHosts,
        run: str,
        output: OutputPipe,
        view: View,
        on_event: Callable[[dict[str, Any]], None],
        cancelled: Callable[[], bool] = lambda: False,
        head_seconds: float | None = None,
        may_detach: bool = True,
    ) -> None:
        begin_events(run)
        self.state = FollowState.LAUNCHING
        self.progress = RunProgress(run=run)
        self._run_hosts, self._run, self._output, self._view = run_hosts, run, output, view
        self._on_event, self._cancelled, self._may_detach = on_event, cancelled, may_detach
        self._head_seconds = RECONNECT_LIMIT_SECONDS if head_seconds is None else head_seconds
        self._reader = EventReader(events_file(run))
        self._interrupts = Interrupts()
        self._changed: Mapping[str, Any] | None = None
        self._task, self._task_began = "", 0.0  # the current task, until it is shown

    def follow(self, playbook: Playbook) -> Followed:
        """Run the playbook that launches or attaches to the run, and follow it to a final state.

        Raises:
            Detached: a signal has ended this command only.
            FtclusterError: the run could not be stopped, and may still be running.
        """
        attaches = isinstance(playbook, Attach)
        if attaches:
            self.state = FollowState.SUPERVISED
        with self._interrupts:
            outcome, event = self._play_to_its_end(playbook, attaches)
            if outcome.state == "stopped":
                self._view.close()
        if event is Event.UNWATCH and self.state is FollowState.FINISHED:
            outcome = replace(outcome, state="done")
        if self.state is FollowState.LEFT:
            raise Detached(self._run, self._interrupts.first, self.progress.document())
        if self.state is FollowState.ASKING:
            detaches = _wants_to_detach(self._run, self._view)
            self._go(Event.DETACH if detaches else Event.REFUSED)
        if self.state is FollowState.STOPPING:
            self._stop()
            self._go(Event.STOPPED)
        self._view.close()
        if self.progress.ended:
            complete_record(self._run, end_of(self.progress))
        detached, lost = self.state is FollowState.DETACHED, self.state is FollowState.LOST
        return Followed(self.progress, outcome, detached, lost, self._changed)

    def _go(self, event: Event) -> None:
        self.state = after(self.state, event)

    def _play_to_its_end(self, playbook: Playbook, attaches: bool) -> tuple[PlaybookOutcome, Event]:
        """Run the playbook. If the connection is lost, attach again while that may succeed."""
        outcome, event = self._play(playbook, attaches)
        came, deadline = self._reader.offset, time.monotonic() + self._head_seconds
        while self.state in RECONNECTS:
            if time.monotonic() >= deadline:
                self._go(Event.GIVEN_UP)
                break
            self._view.say(_reconnect_line(self.state, self._run_hosts.head))
            time.sleep(RECONNECT_PAUSE_SECONDS)
            self._go(Event.AGAIN)
            again = Attach(_events_of(self._run_hosts, self._run, self._output))
            outcome, event = self._play(again, attaches)
            if self._reader.offset > came:
                came, deadline = self._reader.offset, time.monotonic() + self._head_seconds
        return outcome, event

    def _play(self, playbook: Playbook, attaches: bool) -> tuple[PlaybookOutcome, Event]:
        outcome = play_on(
            self._run_hosts,
            playbook,
            self._on_task,
            on_tick=self._on_tick,
            cancelled=lambda: self._interrupts.count > 0 or self._cancelled(),
            time_limit_seconds=RUN_LIMIT_SECONDS,
        )
        self._on_tick()
        event = outcome_event(
            self.state,
            outcome,
            # if ssh refuses the head's key, the head is not off, and no later attempt can succeed
            head_off=self._run_hosts.head not in refused_hosts(outcome)
            and any(
                (failure.kind, failure.host) == ("unreachable", self._run_hosts.head)
                for failure in outcome.failures
            ),
            supervisor_gone=any(
                (failure.action, failure.host) == (FOLLOW, self._run_hosts.head)
                and SUPERVISOR_GONE in failure.message  # other failures are local
                for failure in outcome.failures
            ),
            signalled=self._interrupts.count > 0,
        )
        if event is None:
            outcome = replace(outcome, state="stopped")
            event = request_of(
                self._interrupts.first,
                attaches,
                self._may_detach,
                self._cancelled(),
                SLURM_VARIABLE in os.environ,
                self.progress.doing.startswith(WAITS) and not self.progress.steps_now,
            )
        self._go(event)
        return outcome, event

    def _on_task(self, event: TaskEvent) -> None:
        if event.action == FOLLOW:
            self._go(Event.FOLLOWED)
        if event.host == self._run_hosts.head and (answer := take(CLUSTER_CHANGED, event)):
            (self._changed,) = answer
        if event.kind == "task":
            name = event.task[:1].lower() + event.task[1:]
            self._task = "" if event.action in NO_WORK else name
            self._task_began = time.monotonic()
        self._view.task_event(event)

    def _on_tick(self) -> None:
        # read the events first; the output that a script wrote before them is then in the pipe
        events = self._reader.new_events()
        for event in (*self._output.new_events(), *events):
            self._add(event)
            if self.state in PLAYS:
                self._go(Event.END if self.progress.ended else Event.NEWS)
        if self._task and time.monotonic() - self._task_began > SHOWN_SECONDS:
            if self.state in (FollowState.LAUNCHING, FollowState.SUPERVISED):
                self._add({"event": "phase", "doing": self._task})
            self._task = ""
        self._view.tick()

    def _add(self, event: dict[str, Any]) -> None:
        self.progress.add(event)
        self._view.run_event(self.progress, event["event"])
        self._on_event(event)

    def _stop(self) -> None:
        with Interrupts() as interrupts:
            self._view.say("stopping the ranks ... (press Ctrl-C again to leave at once)")
            # Slurm may send SIGTERM several times, so a second signal does not end the command
            patient = SLURM_VARIABLE in os.environ
            stop(
                self._run_hosts,
                self._run,
                self._on_tick,
                lambda: interrupts.count > 0 and not patient,
                output=self._output,
            )


def _reconnect_line(state: FollowState, head: str) -> str:
    if state is FollowState.AWAY:
        return f"{head} does not answer; the run continues there. Connecting again ..."
    return f"the supervisor on {head} is gone. Starting it again ..."


def _wants_to_detach(run: str, view: View) -> bool:
    """Ask whether the run continues, and return the answer; without an answer, return False."""
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
    """End a run on its head, and its remaining processes on the other hosts.

    Returns:
        The state that the head reports afterwards; None if the head has no such run.

    Args:
        force: True to kill the supervisor too, without waiting for it or for hosts that do not
            respond.
        on_tick: function that is called several times a second.
        cancelled: function that returns True to return before the run has ended. It is called
            several times a second.
        output: pipe for the last output of a script.

    Raises:
        FtclusterError: the run may still be running; the hint shows how to end the run.
    """
    begin_events(run)
    playbook = Stop(_events_of(run_hosts, run, output), force, this_user())
    listed: list[RunState] = []

    def on_event(event: TaskEvent) -> None:
        if event.host == run_hosts.head and (answer := take(RUN_STOPPED, event)):
            listed.extend(state for state in answer[0][0] if state.run == run)

    outcome = play_on(
        run_hosts,
        playbook,
        on_event,
        on_tick=on_tick,
        cancelled=cancelled,
        time_limit_seconds=STOP_LIMIT_SECONDS,
    )
    if outcome.state != "done":
        lines = [with_host(failure.host, failure.reason) for failure in outcome.failures]
        reasons = "".join(f"\n  {line}" for line in lines or [without_warnings(outcome.output)])
        check = "once its hosts respond (see ftcluster check), stop the run again"
        raise FtclusterError(
            f"run {run} could not be stopped and may still be running{reasons}",
            check if force else f"to end it without its supervisor: ftcluster stop --force {run}",
        )
    return listed[0] if listed else None


def _record(run: ClusterRun) -> dict[str, Any]:
    """Return the fields of the run's record that are known before the launch."""
    from ftcluster.planning.backends import stack_of  # slow to import, and only launches need it
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
