"""Every state of following a run, with every event."""

import signal
from itertools import product
from typing import Literal

import pytest

from ftcluster.ansible.playbook import PlaybookOutcome
from ftcluster.launch import follow_states
from ftcluster.launch.follow_states import (
    FINAL,
    Event,
    FollowState,
    after,
    outcome_event,
    request_of,
)
from tests.unit.drawn_tables import drawn_table

DRAWN = drawn_table(follow_states.__doc__ or "")


@pytest.mark.parametrize(("state", "event"), list(product(FollowState, Event)))
def test_each_event_leads_where_the_table_says(state: FollowState, event: Event) -> None:
    if then := DRAWN.get((state.value, event.value)):
        assert after(state, event) is FollowState(then)
    else:
        with pytest.raises(ValueError, match=f"{state.value} has no event {event.value}"):
            after(state, event)


def test_the_table_draws_known_states_and_events_and_ends_in_the_final_states() -> None:
    names = {state.value for state in FollowState}
    assert {state for state, _ in DRAWN} == names - {state.value for state in FINAL}
    assert {event for _, event in DRAWN} == {event.value for event in Event}
    assert set(DRAWN.values()) | {FollowState.LAUNCHING.value} == names
    ends = {state.value for state in FINAL}
    for _ in names:  # a state that leads to one of these states ends too
        ends |= {state for (state, _), then in DRAWN.items() if then in ends}
    assert ends == names


def test_a_run_that_has_ended_never_runs_again() -> None:
    later = {FollowState.ENDED}
    for _ in FollowState:
        later |= {FollowState(DRAWN[key]) for key in DRAWN if FollowState(key[0]) in later}
    assert later == {
        FollowState.ENDED,
        FollowState.ASKING,
        FollowState.STOPPING,
        *FINAL - {FollowState.LOST},
    }


OUTCOMES: tuple[Literal["done", "failed", "stopped", "timeout"], ...] = (
    "done", "failed", "stopped", "timeout",
)  # fmt: skip


@pytest.mark.parametrize("state", follow_states.PLAYS)
@pytest.mark.parametrize("outcome", OUTCOMES)
@pytest.mark.parametrize("off", [False, True])
@pytest.mark.parametrize("gone", [False, True])
@pytest.mark.parametrize("signalled", [False, True])
def test_how_a_playbook_ended(
    state: FollowState,
    outcome: Literal["done", "failed", "stopped", "timeout"],
    off: bool,
    gone: bool,
    signalled: bool,
) -> None:
    event = outcome_event(state, PlaybookOutcome(outcome, ""), off, gone, signalled)
    follows = state in (FollowState.SUPERVISED, FollowState.RUNNING)
    if outcome == "stopped" or (outcome == "failed" and signalled and follows):
        assert event is None
    elif outcome == "failed":
        assert event is (Event.AWAY if off else Event.GONE if gone else Event.FAILED)
    else:
        assert event is Event(outcome)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("slurm", [False, True])
def test_what_a_signal_asks_for(number: signal.Signals, slurm: bool) -> None:
    for may_detach, cancelled in product((False, True), repeat=2):
        assert request_of(number, True, may_detach, cancelled, slurm) is Event.UNWATCH
    for may_detach, cancelled in ((False, False), (False, True), (True, True)):
        assert request_of(number, False, may_detach, cancelled, slurm) is Event.STOP
    asks = slurm or number == signal.SIGINT
    assert request_of(number, False, True, False, slurm) is (Event.ASK if asks else Event.LEAVE)


def test_ctrl_c_takes_a_waiting_run_out_of_the_queue() -> None:
    assert request_of(signal.SIGINT, False, True, False, False, waits=True) is Event.STOP
    # the connection is lost, or the control node is off: the run keeps its place in the queue
    assert request_of(signal.SIGHUP, False, True, False, False, waits=True) is Event.LEAVE
    assert request_of(signal.SIGINT, True, True, False, False, waits=True) is Event.UNWATCH
