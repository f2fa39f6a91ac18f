"""The states in which this command follows a run, and what leads from one to the next.

A pure table: `follow` plays playbooks, reads events and asks the user; `after` decides what follows.

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
"""  # noqa: E501  (the table has one line a state)

import signal
from enum import Enum

from ftcluster.ansible.playbook import PlaybookOutcome


class FollowState(Enum):
    """A state of following a run: what this command knows of the run, and what it does about it.

    Attributes:
        LAUNCHING: its playbook runs; the run has no supervisor yet.
        SUPERVISED: the run has a supervisor, for which this command is dispensable.
        RUNNING: the head has sent an event of the run.
        ENDED: the head has sent the event of its end.
        AWAY: the head does not answer; the command waits to connect again.
        GONE: the head's supervisor is gone; the command waits to start it again.
        ASKING: the user is asked whether the run continues.
        STOPPING: the playbook `stop` ends the run.
        FINISHED: the playbook's outcome is the run's.
        LOST: the head did not answer for too long.
        LEFT: a signal ends this command only.
        DETACHED: the user lets the run continue.
        STOPPED: no rank is left running.
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
    """An event of a run that is followed.

    Attributes:
        FOLLOWED: the playbook has reached the task that follows the supervisor.
        NEWS: the head has sent an event of the run.
        END: the head has sent the event of the run's end.
        DONE, FAILED, TIMEOUT: how the playbook ended by itself.
        AWAY: it failed because the head does not answer.
        GONE: it failed because the supervisor on the head is gone.
        UNWATCH: the user ends a command that only follows.
        LEAVE: a signal ends the command that launched the run, but not the run.
        ASK: Ctrl-C: the user is asked, if somebody can answer.
        STOP: the run is to be stopped.
        AGAIN: the pause before the next connection is over.
        GIVEN_UP: the head has had its time.
        DETACH, REFUSED: the user's answer.
        STOPPED: the playbook `stop` is done.
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

# while a playbook runs; where a state differs, `_NEXT` says so
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
    (
        FollowState.LAUNCHING,
        Event.LEAVE,
    ): FollowState.STOPPING,  # nothing would end ranks that start now
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
    number: int, attaches: bool, may_detach: bool, cancelled: bool, in_slurm: bool
) -> Event:
    """Return what the end of a playbook that was cancelled asks for.

    Args:
        number: number of the first signal.
        attaches: whether the command only follows a run that was launched before.
        may_detach: whether the launched run may continue without the command.
        cancelled: whether the caller has cancelled the run, rather than a signal.
        in_slurm: whether the command runs in a Slurm job, whose signals announce the job's end.
    """
    if attaches:
        return Event.UNWATCH
    if cancelled or not may_detach:
        return Event.STOP
    return Event.ASK if number == signal.SIGINT or in_slurm else Event.LEAVE


def outcome_event(
    state: FollowState,
    outcome: PlaybookOutcome,
    head_off: bool,
    supervisor_gone: bool,
    signalled: bool,
) -> Event | None:
    """Return how the playbook ended by itself; None if the user has ended it.

    Args:
        head_off: whether the head is among the hosts that do not answer.
        supervisor_gone: whether following failed because the supervisor is gone.
        signalled: whether this command has received a signal. The terminal sends it to Ansible's
            processes too, so that a playbook may fail of it.
    """
    if outcome.state == "stopped":
        return None
    if outcome.state != "failed":
        return Event(outcome.state)
    if signalled and state in (FollowState.SUPERVISED, FollowState.RUNNING):
        return None
    return Event.AWAY if head_off else Event.GONE if supervisor_gone else Event.FAILED
