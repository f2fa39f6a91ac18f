from itertools import combinations
from typing import Any

import pytest

from ftcluster.provision.check_report import document
from ftcluster.provision.check_text import lines, matrix, summary, table
from tests.unit.check_documents import facts, found, name, pair, report, row


def shown(count: int, **changes: Any) -> str:
    return "\n".join(lines(document(found(count, **changes))))


def test_a_row_a_host_with_its_numbers() -> None:
    head, first, second, *_ = shown(2).splitlines()
    assert head.split()[:4] == ["host", "address", "CPU", "cores"]
    for word in ("10.0.0.", "Sapphire Rapids", "256 GB", "eth0 25 Gbit/s", "4000", "1.00", "0.3"):
        assert first.index(word) == second.index(word)
    assert head.index("bf16 GFLOP/s") == first.index("4000")


def test_columns_without_anything_are_left_out() -> None:
    rows = [("host", "GFLOP/s", "cores"), ("a", "", "2"), ("b", "", "4")]
    assert list(table(rows)) == ["host  cores", "a     2", "b     4"]
    assert "GFLOP/s" not in shown(2, report=None)


def test_a_host_that_does_not_answer_says_so_in_the_table() -> None:
    cluster = found(2, report=report(2, hosts=[row(0)]))
    del cluster.facts["node1"]
    (line,) = [line for line in lines(document(cluster)) if line.startswith("node1")]
    assert line == "node1  does not answer"


def test_a_cpu_of_no_known_generation_has_its_own_name() -> None:
    other = {"node0": facts(0, cpu_generation="other")}
    assert "Intel(R) Xeon(R) Platinum 8488C" in shown(1, facts=other)


def test_pairs_in_sum_and_the_slowest() -> None:
    links = [pair(*ends) for ends in combinations(range(4), 2)]
    links[3] = pair(1, 2, latency_us=5040.0, mb_per_second=3.54)
    text = shown(4, report=report(4, links=links))
    assert "6 pairs (min / median / max): 40 / 40 / 5040 us, 3.5 / 1002 / 1003 MB/s" in text
    assert "slowest: node1 to node2 3.5 MB/s, node0 to node1 1001 MB/s" in text


def test_one_pair_is_one_line() -> None:
    assert "node0 to node1: 40 us, 1001 MB/s" in shown(2)
    assert "us \\ MB/s" not in shown(2)


def test_the_whole_matrix_of_some_hosts() -> None:
    assert "us \\ MB/s" in shown(8)
    assert "us \\ MB/s" not in shown(9)


def test_latency_is_above_the_diagonal_and_bandwidth_below() -> None:
    pairs = [pair(0, 1, latency_us=41.6, mb_per_second=9.04), pair(0, 2), pair(1, 2)]
    assert matrix([name(number) for number in range(3)], pairs) == [
        ["us \\ MB/s", "node0", "node1", "node2"],
        ["node0", "-", "42", "40"],
        ["node1", "9.0", "-", "41"],
        ["node2", "1002", "1002", "-"],
    ]


def test_a_pair_that_was_not_measured_is_a_dash() -> None:
    assert matrix(["node0", "node1", "node2"], [pair(0, 1), pair(1, 2)])[1][3] == "-"


def test_hosts_are_found_in_either_order() -> None:
    """The head comes first in the measurement, wherever the inventory has it."""
    assert matrix(["node1", "node0"], [pair(0, 1)])[1][2] == "40"


def test_findings_have_their_hints_below_them_once() -> None:
    slow = [
        {"host": name(number), "what": f"slow {number}", "hint": "look here", "kind": "link"}
        for number in range(2)
    ]
    text = shown(2, report=report(2, warnings=[*slow, {**slow[0], "host": "node1"}]))
    assert "warnings:\n  node0, node1: slow 0\n  node1: slow 1\n    look here\n" in text


def test_words_of_several_lines_stay_together() -> None:
    problem = {"host": "", "what": "mpirun said:\nline", "hint": "", "kind": "launch"}
    text = shown(1, report=report(1, problems=[problem]))
    assert "problems:\n  mpirun said:\n    line\n\nunfit: 1 host, 1 problem, 9 s" in text


@pytest.mark.parametrize(
    ("problems", "warnings", "words"),
    [(0, 0, "fit: 3 hosts, 9 s"), (2, 1, "unfit: 3 hosts, 2 problems, 1 warning, 9 s")],
)
def test_the_last_line(problems: int, warnings: int, words: str) -> None:
    finding = {"host": "node1", "what": "w", "hint": "", "kind": "link"}
    changed = report(3, problems=[finding] * problems, warnings=[finding] * warnings)
    assert summary(document(found(3, report=changed))) == words
