"""Readers of foreign text raise only documented errors; writers follow their templates."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import MORE
from tests.fuzz.host_answers import HOST_ANSWERS
from tests.fuzz.inputs import inputs_of, problem
from tests.fuzz.parsers import NASTY
from tests.fuzz.parsers import PARSERS as FILES
from tests.fuzz.writers import WRITERS

PARSERS = FILES | HOST_ANSWERS | WRITERS

HANG_SECONDS = 30.0  # limit on a busy machine

each = pytest.mark.parametrize("name", PARSERS)


@each
def test_good_input_is_taken(name: str, tmp_path: Path) -> None:
    parser = PARSERS[name]
    for number, seed in enumerate(parser.seeds):
        folder = tmp_path / str(number)
        folder.mkdir()
        # an allowed exception means that the reader refuses the input
        found = parser.read(seed, folder)
        assert parser.taken(found), (seed, found)


@each
def test_what_is_nasty_is_refused_as_documented(name: str) -> None:
    found = {data[:40]: problem(PARSERS[name], data, HANG_SECONDS) for data in NASTY}
    assert {data: said for data, said in found.items() if said} == {}


@each
@settings(max_examples=MORE or 15)
@given(data=st.data())
def test_damaged_input_is_refused_as_documented(name: str, data: st.DataObject) -> None:
    given = data.draw(inputs_of(PARSERS[name]))
    assert problem(PARSERS[name], given, HANG_SECONDS) == ""
