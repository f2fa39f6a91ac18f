from itertools import combinations
from types import SimpleNamespace
from typing import Any

import pytest

from ftcluster.provision.check_report import document
from ftcluster.provision.check_text import lines, matrix, table
from tests.unit.check_documents import facts, found, name, pair, report
from tests.unit.shell import Said

LINKS = [pair(*ends) for ends in combinations(range(4), 2)]
SLOW = pair(1, 2, latency_us=5040.0, mb_per_second=3.54)
HOT = [
    {"host": name(number), "what": f"slow {number}", "hint": "look here", "kind": "straggler"}
    for number in range(2)
]
ENDED = {"host": "", "what": "mpirun ended:\nline", "hint": "", "kind": "launch"}


@pytest.mark.parametrize(
    ("count", "changes"),
    [
        (1, {"facts": {"node0": facts(0, cpu_generation="other")}}),
        (2, {}),
        (2, {"facts": {"node0": facts(0)}, "report": None}),
        (4, {"report": report(4, links=[*LINKS[:3], SLOW, *LINKS[4:]])}),
        (2, {"report": report(2, warnings=[*HOT, {**HOT[0], "host": "node1"}], problems=[ENDED])}),
        (9, {}),
    ],
    ids=["one", "two", "off", "slow link", "findings", "no matrix"],
)
def test_the_whole_text(count: int, changes: dict[str, Any], said: Said) -> None:
    said("\n".join(lines(document(found(count, **changes)))))


@pytest.mark.parametrize(
    ("kind", "said"), [("unreachable", "does not answer"), ("failed", "failed")]
)
def test_a_host_that_failed_is_not_one_that_does_not_answer(kind: str, said: str) -> None:
    failure = SimpleNamespace(kind=kind, message="why", problem="why")
    made = found(2, facts={"node0": facts(0)}, failures={"node1": failure}, report=None)
    [row] = [line for line in lines(document(made)) if line.startswith("node1 ")]
    assert row.split(maxsplit=1)[1] == said


def test_columns_without_anything_are_left_out() -> None:
    rows = [("host", "GFLOP/s", "cores"), ("a", "", "2"), ("b", "", "4")]
    assert table(rows) == ["host  cores", "a     2", "b     4"]


def test_latency_is_above_the_diagonal_and_bandwidth_below() -> None:
    pairs = [pair(0, 1, latency_us=41.6, mb_per_second=9.04), pair(1, 2)]
    assert matrix([name(number) for number in range(3)], pairs) == [
        ["us \\ MB/s", "node0", "node1", "node2"],
        ["node0", "-", "42", "-"],
        ["node1", "9.0", "-", "41"],
        ["node2", "-", "1002", "-"],
    ]
    # the head is first in the measurement, wherever it is in the inventory
    assert matrix(["node1", "node0"], [pair(0, 1)])[1][2] == "40"
