"""The ledger of samples, and the page's table."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

from tests.faults.ledger import Order, by_pass, compare, counted, read_log
from tests.faults.table import machine, new_machine, read, tables

UNDISTURBED: Order = {1: Counter([0, 1]), 2: Counter([2, 3]), 3: Counter([4, 5])}


def log(*lines: tuple[int, int, list[int]]) -> str:
    keys = ("restart", "step", "samples")
    return "".join(json.dumps(dict(zip(keys, line, strict=True))) + "\n" for line in lines)


def test_the_last_time_that_a_step_was_taken_counts() -> None:
    first = log((0, 1, [0]), (0, 2, [2]), (0, 3, [4]), (1, 3, [4]))
    second = log((0, 1, [1]), (0, 2, [3]), (1, 3, [5])) + '{"restart": 1, "st'
    taken = [*read_log(first), *read_log(second)]
    assert counted(taken) == UNDISTURBED
    assert compare(counted(taken), UNDISTURBED, 3) == (0, 0)
    resumed = read_log(log((0, 3, [4, 4])), run=1)
    assert compare(counted([*taken, *resumed]), UNDISTURBED, 3) == (1, 1)
    assert compare({}, UNDISTURBED, 2) == (4, 0)
    assert by_pass(UNDISTURBED, 2) == {1: Counter(range(4)), 2: Counter([4, 5])}


def test_the_tables_have_what_was_measured(tmp_path: Path) -> None:
    described = {"kind": "machine", "cpu": "A machine", "cores": 2, "amx": False, "kernel": "6.1"}
    other = described | {"cpu": "Intel(R) Xeon(R) Processor"}
    fault: dict[str, Any] = {
        "kind": "fault", "fault": "kill-rank", "place": "localhost", "state": "continued",
        "named": True, "noticed": 0.5, "moving": 9.0, "steps_lost": 3, "left": [],
        "checkpoint_lost": False,
    }  # fmt: skip
    slower = fault | {"noticed": 1.5, "moving": 11.0, "steps_lost": 5}
    results = tmp_path / "results.jsonl"
    lines = (described, fault, other, slower)
    results.write_text("".join(json.dumps(line) + "\n" for line in lines))
    made = tables(read(results))
    row = "SIGKILL of a rank | one host, two ranks | A machine: 1, Intel Xeon: 1"
    row += " | 2 | 2 | 2 | 1, 1.5 | 10, 11 | 4, 5 | 0"
    assert made["faults-by-place"].splitlines()[2:] == [f"| {row} |"]
    assert made["faults"].splitlines()[2:] == ["| SIGKILL of a rank | 2 | 2 | 1, 1.5 | 10, 11 |"]
    assert made["faults-machines"].splitlines() == [
        "- 2 cores of A machine, without AMX, Linux 6.1",
        "- 2 cores of Intel(R) Xeon(R) Processor, without AMX, Linux 6.1",
    ]
    assert "SIGSTOP of a rank" in made["faults-not-tried"]


def test_a_machine_that_returns_is_written_again() -> None:
    """The lines below a machine were measured on it."""
    here, other = {"kind": "machine", **machine()}, {"kind": "machine", "cpu": "A CPU"}
    assert new_machine([here, {"kind": "fault"}]) == []
    assert new_machine([here, other]) == new_machine([]) == [here]
