"""Every state of an ansible-playbook process, with every event."""

from itertools import product
from typing import get_args

import pytest

from ftcluster.ansible import playbook_states
from ftcluster.ansible.playbook_states import EndState, Exit, PlaybookState, Reason, after
from tests.unit.drawn_tables import drawn_table

ENDS = get_args(EndState)
STATES = ("playing", *ENDS)
EVENTS = (*get_args(Reason), *get_args(Exit))
DRAWN = drawn_table(playbook_states.__doc__ or "")


def test_the_table_draws_every_state_and_event() -> None:
    assert set(DRAWN) == set(product(STATES, EVENTS))
    assert set(DRAWN.values()) == set(ENDS)


@pytest.mark.parametrize(("state", "event"), list(product(STATES, EVENTS)))
def test_each_event_leads_where_the_table_says(state: PlaybookState, event: Reason | Exit) -> None:
    assert after(state, event) == DRAWN[state, event]
    for later in EVENTS:  # the end state never changes
        assert after(after(state, event), later) == after(state, event)
