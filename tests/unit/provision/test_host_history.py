"""Hosts that are slower than in earlier checks."""

from typing import Any

import pytest

from ftcluster.provision.check_report import document
from ftcluster.provision.host_history import KEPT, compared, keep, read_history
from tests.unit.check_documents import SPEED, facts, found, name, pair, report, row
from tests.unit.shell import Said


def checked(**changes: Any) -> dict[str, Any]:
    """Return a check of two hosts, the second with these values."""
    rows = [row(0), row(1, speed={**SPEED, **changes})]
    return document(found(2, report=report(2, hosts=rows)))


def warned(result: dict[str, Any]) -> list[tuple[str, str]]:
    return [(one["host"], one["what"]) for one in result["warnings"] if one["kind"] == "degraded"]


def after(count: int, now: dict[str, Any]) -> dict[str, Any]:
    for _ in range(count):
        keep(checked())
    return compared(now, read_history(now["inventory"]))


def test_a_host_that_is_slower_than_it_was_is_named(said: Said) -> None:
    result = after(3, checked(bf16_gflops=3000.0, mhz=1900))
    [(host, what)] = warned(result)
    assert host == "node1"
    said(what.split(" since ")[0])
    assert what.endswith("its clock is 1900 MHz, but was 2600 MHz")
    assert [one["of_own_median"] for one in result["hosts"]] == [1.0, 0.75]
    assert [one["own_checks"] for one in result["hosts"]] == [3, 3]


@pytest.mark.parametrize(
    "changes", [{"bf16_gflops": 3500.0}, {"bf16_gflops": 9000.0}, {"mhz": 900}]
)
def test_small_differences_and_a_low_clock_alone_are_none(changes: dict[str, Any]) -> None:
    assert warned(after(3, checked(**changes))) == []


def test_memory_and_disk(said: Said) -> None:
    [(_, memory)] = warned(after(3, checked(memory_gb_per_second=300.0)))
    said(memory.split(" since ")[0])
    keep(checked(disk_mb_per_second=500))  # a disk is compared with its slowest earlier value
    assert warned(after(3, checked(disk_mb_per_second=440))) == []
    [(_, disk)] = warned(after(0, checked(disk_mb_per_second=300)))
    said(disk.split(" since ")[0])


def test_two_checks_are_too_few() -> None:
    result = after(2, checked(bf16_gflops=100.0))
    assert warned(result) == []
    assert result["hosts"][1]["of_own_median"] is None


@pytest.mark.parametrize("changes", [{"threads": 16}, {"cpu": "another"}])
def test_figures_of_another_machine_are_not_compared(changes: dict[str, Any]) -> None:
    assert warned(after(3, checked(bf16_gflops=100.0, **changes))) == []


def test_a_link_and_memory() -> None:
    slow = document(found(2, report=report(2, links=[pair(0, 1, mb_per_second=300.0)])))
    assert [host for host, _ in warned(after(3, slow))] == ["node0", "node1"]
    less = {name(0): facts(0), name(1): facts(1, memory_bytes=224 * 10**9)}
    [(host, what)] = warned(after(0, document(found(2, facts=less))))
    assert (host, what.split(" of ")[0]) == ("node1", "224 GB")


def test_what_a_run_disturbed_is_neither_kept_nor_compared() -> None:
    busy = {"host": "node1", "what": "run mrpc-1 is active", "hint": "", "kind": "busy"}
    rows = [row(0), row(1, speed={**SPEED, "bf16_gflops": 100.0})]
    result = document(found(2, report=report(2, hosts=rows, warnings=[busy])))
    assert warned(after(3, result)) == []
    keep(result)
    known = read_history(result["inventory"])
    assert [len(known[host]) for host in ("node0", "node1")] == [4, 3]


def test_old_checks_go() -> None:
    for _ in range(KEPT + 2):
        keep(checked())
    assert {len(of) for of in read_history(checked()["inventory"]).values()} == {KEPT}
