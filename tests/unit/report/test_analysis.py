"""The analysis of a step's time: its parts, the costliest host, and the effect of one more host."""

from typing import Any

import pytest

from ftcluster.report.analysis import host_costs, next_host, rank_hosts, step_parts
from ftcluster.report.history import history_of, totals
from ftcluster_common.protocol.rank_times import Interval
from tests.unit.report.runs import BATCH, events, record

NAMES = ["node1", "node1", "node2", "node2"]


def whole_of(**changes: Any) -> tuple[Interval, Any]:
    history = history_of(events(**changes))
    whole = totals(history.intervals)
    assert whole
    return whole, history.products


def test_the_parts_of_a_step() -> None:
    parts = step_parts(*whole_of())
    assert parts.seconds == pytest.approx(0.12)
    assert (parts.input, parts.communication, parts.waiting) == pytest.approx((10, 20, 0), abs=1e-6)
    # the matmuls alone would be twice as fast as the training
    assert parts.limit_share == pytest.approx(0.5)
    assert (parts.matmuls, parts.other) == pytest.approx((60, 30))
    assert parts.shares == pytest.approx(
        {"compute": 0.75, "communication": 1 / 6, "input": 1 / 12, "waiting": 0}, abs=1e-9
    )
    # without the matmul speed there is no limit
    whole, products = whole_of()
    for known in ({}, {"gflops": [1.0], "weights": 5}, {**products, "gflops": [0.0] * 4}):
        parts = step_parts(whole, known)
        assert (parts.limit_share, parts.matmuls) == (None, 0)
        assert parts.other == pytest.approx(90)


def test_the_host_that_others_wait_for_costs_most() -> None:
    first, second = host_costs(whole_of(slow=1)[0], NAMES)
    assert (first.host, first.ranks) == ("node2", (2, 3))
    assert first.work == pytest.approx(0.15)
    assert first.relative == pytest.approx(0.15 / 0.125)
    assert first.saved == pytest.approx(0.05 / 0.17)
    assert (second.host, second.saved) == ("node1", 0)
    # equal hosts cost the same
    costs = host_costs(whole_of()[0], NAMES)
    assert [round(one.saved, 9) for one in costs] == [0, 0]
    (alone,) = host_costs(whole_of(hosts=1)[0], NAMES[:2])
    assert (alone.saved, alone.relative) == (0, pytest.approx(1))


def test_one_more_host() -> None:
    whole, _ = whole_of()
    speed = BATCH / 0.12
    found = next_host(whole, speed, hosts=2)
    # from 4 to 6 ranks: a rank of a ring sends 5/6 instead of 3/4
    moved = 0.02 * (5 / 6) / (3 / 4)
    assert found.same_batch == pytest.approx(BATCH / (0.1 * 2 / 3 + moved))
    assert found.same_share == pytest.approx(1.5 * BATCH / (0.1 + moved))
    assert (found.hosts, found.network_known) == (3, True)
    assert not next_host(whole_of(hosts=1)[0], speed, hosts=1).network_known


def test_ranks_have_the_inventorys_names_of_their_hosts() -> None:
    ranks = [{"host": f"node{1 + rank // 2}.example"} for rank in range(4)]
    assert rank_hosts(ranks, record()) == NAMES
    assert rank_hosts(ranks[2:], record()) == ["node2", "node2"]  # node1 was lost
    assert rank_hosts(ranks, {}) == [rank["host"] for rank in ranks]
    # the plan distinguishes hosts with the same hostname
    alike = record()
    for host in alike["facts"]:
        host["hostname"] = "localhost"
    assert rank_hosts([{"host": "localhost"}] * 4, alike) == NAMES
