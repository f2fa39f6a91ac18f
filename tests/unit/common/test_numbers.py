"""Numbers in data: why a cell is not a number, and the advice in the message."""

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftcluster_common.data.numbers import as_number, why_no_number


@pytest.mark.parametrize(
    ("cell", "why"),
    [
        ("1,5", "use a decimal point"),
        ("1,500", "no separator between thousands"),  # 1500 in English, not 1.5
        ("1.234,56", "no separator between thousands"),
        ("1\u202f234,5", "no separator between thousands"),  # French
        ("1'500.5", "no separator between thousands"),  # Swiss
        ("2_500", "remove the underscores"),
        ("\uff11\uff12", "with the digits 0 to 9"),
        ("\u22121.5", "and the signs + and -"),  # the minus sign of word processors
        ("0x1F", "as a decimal number"),
        ("Infinity", "not a finite number"),
        ("-nan", "not a finite number"),
        ("1e999", "not a finite number"),
        (float("inf"), "not a finite number"),
        ("$15", "not a number"),
        (True, "not a number"),
        (None, "not a number"),
        ([1], "not a number"),
    ],
)
def test_a_cell_that_is_no_number_says_why(cell: Any, why: str) -> None:
    assert as_number(cell) is None
    assert why in why_no_number(cell)


def test_numbers_of_parquet_are_numbers() -> None:
    assert as_number(Decimal("12.50")) == 12.5


@given(st.text(max_size=20) | st.floats() | st.integers() | st.lists(st.integers(), max_size=2))
def test_no_cell_breaks_the_reader(cell: Any) -> None:
    assert as_number(cell) is not None or why_no_number(cell).startswith("not a")
