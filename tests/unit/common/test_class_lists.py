"""Several classes in a cell: what is evidence for a separator, and what is a name."""

import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftcluster_common.data.class_lists import MARKS, Separator, find_separator, split_classes


@pytest.mark.parametrize(
    ("cells", "separator"),
    [
        (["Action|Comedy", "Comedy", "Drama|Action", "Drama"], "pipe"),
        (["bug; ui", "ui", "bug", ""], "none"),  # one row may be a mistake
        (["bug; ui", "ui; bug", "bug"], "semicolon"),
        (["Health, beauty", "Home, garden", "Toys"] * 9, "none"),  # names with commas
        (["sports, football", "sports, tennis", "sports, golf"] * 9, "none"),
        (["3,5", "4,0", "3,5", "1,0"], "none"),  # numbers with a decimal comma
        (["1,2", "1", "2", "2,1"], "comma"),
        (["C#", "F#", "C#", "Java"], "none"),
        (["a#b", "b#c", "c#a"], "hash"),
        (["good", "bad"] * 9, "none"),
        ([1, 0, 1], "none"),
        (['["a"]', "[]", '["b", "a"]'], "list"),
        (["['a']", "", "['b', 'a']"], "list"),
        (["['a']", "b"], "none"),
        (["[0.1, 0.9]", "[0.2, 0.8]"], "none"),  # probabilities
        (["[SEP]", "[1]x"], "none"),
        ([], "none"),
        ([None, ""], "none"),
        (["a, b", "b, a"] + ["a", "b"] * 50, "none"),  # 2 of 102 rows
    ],
)  # fmt: skip
def test_the_separator_that_the_cells_prove(cells: Sequence[object], separator: str) -> None:
    assert find_separator(cells) == separator


NAMES = st.lists(st.text("abcé ", min_size=1).map(str.strip).filter(bool), unique=True)


@given(NAMES, st.sampled_from([*MARKS]))
def test_joined_names_are_separated(names: list[str], separator: Separator) -> None:
    for mark in (MARKS[separator], f" {MARKS[separator]} "):
        assert split_classes(mark.join(names), separator) == names


@given(st.lists(st.text()))
def test_lists_of_json_and_of_python_are_read(names: list[str]) -> None:
    for text in (json.dumps(names), json.dumps(names, ensure_ascii=False), repr(names)):
        if "\\ud" not in text:  # half of a surrogate pair
            assert split_classes(text, "list") == names
