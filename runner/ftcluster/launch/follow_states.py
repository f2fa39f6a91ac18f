"""The state machine of a command that follows a run: its states, events and transitions.

All functions are pure. `follow` runs playbooks, reads events and asks the user; `after` decides the
next state:

    state      | followed   news    end   | done     failed   away     gone     timeout  | unwatch  leave    ask      stop
    launching  | supervised running ended | finished finished finished finished finished | left     stopping stopping stopping
    supervised | supervised running ended | finished finished finished finished finished | left     left     stopping stopping
    running    | running    running ended | finished finished away     gone     finished | left     left     asking   stopping
    ended      | ended      ended   ended | finished finished finished finished finished | finished left     asking   stopping

    state      | again    given_up  | detach   refused  | stopped
    away       | running  lost      | -        -        | -
    gone       | running  finished  | -        -        | -
    asking     | -        -         | detached stopping | -
    stopping   | -        -         | -        -        | stopped

The states finished, lost, left, detached and stopped are final.
"""  # noqa: E501  (the table has one line per state)

import signal
from enum import Enum

from ftcluster.ansible.playbook import PlaybookOutcome


class FollowState(Enum):
    """A state of a command that follows a run.

    Attributes:
        LAUNCHING: the playbook is launching the run; the run has no supervisor yet.
        SUPERVISED: the run has a supervisor, so the run no longer needs this command.
        RUNNING: the head has sent an event of the run.
        ENDED: the head has sent the last event of the run.
        AWAY: the head does not respond; the command waits to connect again.
        GONE: the head's supervisor is gone; the command waits to start it again.
        ASKING: the user is asked whether the run continues.
        STOPPING: the playbook `stop` ends the run.
        FINISHED: the playbook has ended, and its outcome is the outcome of the run.
        LOST: the head did not respond within the time limit.
        LEFT: a signal ends this command, and the run continues.
        DETACHED: the user ends this command, and lets the run continue.
        STOPPED: no rank is running any more.
    """

    LAUNCHING = "launching"
    SUPERVISED = "supervised"
    RUNNING = "running"
    ENDED = "ended"
    AWAY = "away"
    GONE = "gone"
    ASKING = "asking"
    STOPPING = "stopping"
    FINISHED = "finished"
    LOST = "lost"
    LEFT = "left"
    DETACHED = "detached"
    STOPPED = "stopped"


class Event(Enum):
    """An event that may change the state of a command that follows a run.

    Attributes:
        FOLLOWED: the playbook has reached the task that follows the supervisor.
        NEWS: the head has sent an event of the run.
        END: the head has sent the last event of the run.
        DONE: the playbook has succeeded.
        FAILED: the playbook has failed for a reason other than AWAY or GONE.
        TIMEOUT: the playbook has exceeded its time limit.
        AWAY: the playbook has failed because the head does not respond.
        GONE: the playbook has failed because the supervisor on the head is gone.
        UNWATCH: the user ends a command that follows a run which was launched before.
        LEAVE: a signal ends the command that launched the run, but not the run.
        ASK: the user has pressed Ctrl-C, and is asked at the terminal whether the run continues.
        STOP: the run must be stopped.
        AGAIN: the pause before the next attempt to connect is over.
        GIVEN_UP: the time limit for connecting to the head is over.
        DETACH: the user answers that the run continues.
        REFUSED: the user answers that the run must be stopped, or nobody answers.
        STOPPED: the playbook `stop` has ended.
    """

    FOLLOWED = "followed"
    NEWS = "news"
    END = "end"
    DONE = "done"
    FAILED = "failed"
    AWAY = "away"
    GONE = "gone"
    TIMEOUT = "timeout"
    UNWATCH = "unwatch"
    LEAVE = "leave"
    ASK = "ask"
    STOP = "stop"
    AGAIN = "again"
    GIVEN_UP = "given_up"
    DETACH = "detach"
    REFUSED = "refused"
    STOPPED = "stopped"


FINAL = frozenset(
    {
        FollowState.FINISHED,
        FollowState.LOST,
        FollowState.LEFT,
        FollowState.DETACHED,
        FollowState.STOPPED,
    }
)
PLAYS = (FollowState.LAUNCHING, FollowState.SUPERVISED, FollowState.RUNNING, FollowState.ENDED)
RECONNECTS = (FollowState.AWAY, FollowState.GONE)

# the next state while a playbook runs; `_NEXT` adds the exceptions
_WHILE_PLAYING = {
    Event.FOLLOWED: FollowState.SUPERVISED,
    Event.NEWS: FollowState.RUNNING,
    Event.END: FollowState.ENDED,
    Event.DONE: FollowState.FINISHED,
    Event.FAILED: FollowState.FINISHED,
    Event.AWAY: FollowState.FINISHED,
    Event.GONE: FollowState.FINISHED,
    Event.TIMEOUT: FollowState.FINISHED,
    Event.UNWATCH: FollowState.LEFT,
    Event.LEAVE: FollowState.LEFT,
    Event.ASK: FollowState.STOPPING,
    Event.STOP: FollowState.STOPPING,
}
_NEXT = {(state, event): then for state in PLAYS for event, then in _WHILE_PLAYING.items()} | {
    # without a stop, ranks that start now would keep running
    (FollowState.LAUNCHING, Event.LEAVE): FollowState.STOPPING,
    (FollowState.RUNNING, Event.FOLLOWED): FollowState.RUNNING,
    (FollowState.RUNNING, Event.AWAY): FollowState.AWAY,
    (FollowState.RUNNING, Event.GONE): FollowState.GONE,
    (FollowState.RUNNING, Event.ASK): FollowState.ASKING,
    (FollowState.ENDED, Event.FOLLOWED): FollowState.ENDED,
    (FollowState.ENDED, Event.NEWS): FollowState.ENDED,
    (FollowState.ENDED, Event.UNWATCH): FollowState.FINISHED,
    (FollowState.ENDED, Event.ASK): FollowState.ASKING,
    (FollowState.AWAY, Event.AGAIN): FollowState.RUNNING,
    (FollowState.AWAY, Event.GIVEN_UP): FollowState.LOST,
    (FollowState.GONE, Event.AGAIN): FollowState.RUNNING,
    (FollowState.GONE, Event.GIVEN_UP): FollowState.FINISHED,
    (FollowState.ASKING, Event.DETACH): FollowState.DETACHED,
    (FollowState.ASKING, Event.REFUSED): FollowState.STOPPING,
    (FollowState.STOPPING, Event.STOPPED): FollowState.STOPPED,
}


def after(state: FollowState, event: Event) -> FollowState:
    """Return the state that the event leads to.

    Raises:
        ValueError: the event cannot happen in this state.
    """
    if (state, event) not in _NEXT:
        raise ValueError(f"a run that is {state.value} has no event {event.value}")
    return _NEXT[state, event]


def request_of(
    number: int,
    attaches: bool,
    may_detach: bool,
    cancelled: bool,
    in_slurm: bool,
    waits: bool = False,
) -> Event:
    """Return the event for a playbook that was cancelled by a signal or by the caller.

    Args:
        number: number of the first signal that was received.
        attaches: True if the command only follows a run that was launched before.
        may_detach: True if the run may continue without the command that launched it.
        cancelled: True if the caller, rather than a signal, has cancelled the run.
        in_slurm: True if the command runs in a Slurm job; signals then announce the job's end.
        waits: True if the run waits for hosts. Ctrl-C then removes the run from the queue.
    """
    if attaches:
        return Event.UNWATCH
    if cancelled or not may_detach or (waits and number == signal.SIGINT):
        return Event.STOP
    return Event.ASK if number == signal.SIGINT or in_slurm else Event.LEAVE


def outcome_event(
    state: FollowState,
    outcome: PlaybookOutcome,
    head_off: bool,
    supervisor_gone: bool,
    signalled: bool,
) -> Event | None:
    """Return the event for a playbook that has ended by itself; None if the user has ended it.

    Args:
        state: the current state.
        outcome: outcome of the playbook.
        head_off: True if the head is among the hosts that do not respond.
        supervisor_gone: True if the playbook failed because the supervisor is gone.
        signalled: True if this command has received a signal. A terminal sends the signal to
            Ansible's processes too, so the playbook may fail because of the signal.
    """
    if outcome.state == "stopped":
        return None
    if outcome.state != "failed":
        return Event(outcome.state)
    if signalled and state in (FollowState.SUPERVISED, FollowState.RUNNING):
        return None
    return Event.AWAY if head_off else Event.GONE if supervisor_gone else Event.FAILED
