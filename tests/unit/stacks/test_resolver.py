"""Stacks that meet requirements."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftcluster.errors import UsageError
from ftcluster.stacks.catalog import Stack
from ftcluster.stacks.resolver import (
    LATEST,
    MAX_NEAREST,
    PACKAGES,
    Match,
    Requirement,
    resolve,
    versions,
)
from tests.unit.clusters import STACKS

KNOWN = sorted({v for stack in STACKS.values() for part in PACKAGES for v in versions(stack, part)})
VERSIONS = st.sampled_from([*KNOWN, *(v.rpartition(".")[0] for v in KNOWN), "0.1", "3", LATEST])
REQUIREMENTS = st.fixed_dictionaries(
    {},
    optional={
        "stack": st.sampled_from(list(STACKS)),
        "torch": VERSIONS,
        "transformers": VERSIONS,
        "accelerate": VERSIONS,
        "ipex": VERSIONS | st.booleans(),
        "ccl": VERSIONS | st.booleans(),
        "python": st.sampled_from(["3.5", "3.6", "3.9.2", "3.10", "3.13", "3.15"]),
    },
)


def match(**requirements: Any) -> Match:
    return resolve([Requirement(*one) for one in requirements.items()], STACKS)


@given(REQUIREMENTS)
def test_exact_stacks_meet_all_and_nearest_ones_say_what_differs(wanted: dict[str, Any]) -> None:
    found = match(**wanted)
    assert bool(found.exact) != bool(found.nearest) == bool(found.reasons)
    assert len(found.nearest) <= MAX_NEAREST
    assert len(set(found.reasons)) == len(found.reasons)
    # fewer requirements never match fewer stacks
    for part in wanted:
        fewer = match(**{key: value for key, value in wanted.items() if key != part})
        assert all(stack in fewer.exact for stack in found.exact)
    differences = [len(missed) for _, missed in found.nearest]
    assert differences == sorted(differences)
    assert all(0 < count <= len(wanted) for count in differences)


@given(st.sampled_from(list(STACKS.values())), st.sets(st.sampled_from([*PACKAGES, "python"])))
def test_a_stack_meets_what_it_has(stack: Stack, parts: set[str]) -> None:
    has = {part: (*versions(stack, part), False)[0] for part in parts}
    assert stack in match(**has).exact


@pytest.mark.parametrize(
    ("wanted", "names"),
    [
        ({"torch": "2.8.0+cpu"}, ["intel-2.8"]),
        ({"torch": "2.1"}, ["intel-2.1"]),  # and not 2.13
        ({"torch": LATEST}, ["native-2.15"]),
        ({"ipex": LATEST}, ["intel-2.8"]),
        ({"torch": "1.13"}, ["intel-1.13.1", "intel-1.13"]),
        ({"ipex": True, "ccl": False}, ["intel-2.8"]),
        ({"python": "3.6.15"}, ["intel-1.10"]),
        ({"python": "3.13", "ccl": True}, ["intel-2.7", "intel-2.6"]),
        ({"stack": "intel-2.7", "python": "3.12"}, ["intel-2.7"]),
    ],
)
def test_stacks_that_meet_all(wanted: dict[str, Any], names: list[str]) -> None:
    assert [stack.name for stack in match(**wanted).exact] == names


@pytest.mark.parametrize(
    ("wanted", "nearest", "missed", "sources"),
    [
        # the statements of the projects, each with its page
        ({"torch": "2.8", "ccl": True}, "intel-2.8", "no oneccl_bind_pt", ["torch-ccl"]),
        ({"torch": LATEST, "ipex": True}, "native-2.15", "no IPEX",
         ["intel-extension-for-pytorch"]),
        ({"accelerate": "1.15", "ipex": True}, "native", "no IPEX",
         ["intel-extension-for-pytorch", "accelerate"]),
        ({"ipex": "2.9"}, "intel-2.8", "IPEX 2.8.0 instead of 2.9",
         ["intel-extension-for-pytorch"]),
        # the statements do not concern earlier releases
        ({"ipex": "2.4", "python": "3.13"}, "intel-2.7", "IPEX 2.7.0 instead of 2.4", []),
        # another patch release is closer than a stack with a lock
        ({"torch": "2.5.1", "ipex": True}, "intel-2.5", "torch 2.5.0 instead of 2.5.1", []),
        ({"torch": "1.13", "python": "3.12"}, "intel-2.7", "torch 2.7.0 instead of 1.13", []),
        ({"torch": "2.7", "ipex": False}, "intel-2.7", "IPEX 2.7.0", []),
        ({"python": "3.15"}, "native", "Python 3.11 to 3.14 instead of 3.15", []),
    ],
)  # fmt: skip
def test_the_nearest_stack_and_why(
    wanted: dict[str, Any], nearest: str, missed: str, sources: list[str]
) -> None:
    found = match(**wanted)
    stack, differences = found.nearest[0]
    assert (stack.name, differences) == (nearest, (missed,))
    pages = [note.source for note in found.reasons if note.source]
    assert [page.rpartition("/")[2] for page in pages] == sources


def test_each_conflict_has_its_reason(said: Any) -> None:
    for wanted in (
        {"torch": "2.13", "ipex": True, "ccl": True},
        {"torch": "2.9"},
        {"torch": "2.8", "python": "3.9"},
    ):
        said("\n".join(note.text for note in match(**wanted).reasons))


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("torch", "abc"),
        ("torch", ""),
        ("torch", "2.8.0+xpu"),
        ("ipex", "2..7"),
        ("python", "3"),
        ("python", LATEST),
    ],
)
def test_what_is_not_a_version(part: str, value: str) -> None:
    with pytest.raises(UsageError, match=f"'{value}'".replace("+", r"\+")):
        Requirement(part, value)


def test_an_unknown_stack_is_an_error_beside_other_requirements() -> None:
    with pytest.raises(UsageError):
        match(stack="intel-2.9", ipex=True)
