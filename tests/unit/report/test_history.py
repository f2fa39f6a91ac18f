"""A run's events as curves, spans of time and seconds by rank."""

import pytest

from ftcluster.report.history import history_of, totals
from tests.unit.report.runs import BATCH, events


def test_what_a_run_did_when() -> None:
    history = history_of(events())
    spans = [(span.doing, round(span.ended - span.began, 3)) for span in history.spans]
    assert spans == [
        ("starting", 5), ("loading", 5), ("training", 7.8), ("evaluating", 2), ("saving", 1),
        ("saving", 5), ("evaluating", 2), ("saving", 1),
    ]  # fmt: skip
    assert history.seconds == pytest.approx(10 + 40 * 0.12 + 6 + 2)
    assert history.train_seconds == pytest.approx(4.8)
    assert history.goodput == pytest.approx(4.8 / 22.8)
    # speed between two logs
    assert [round(speed, 3) for _, speed in history.speeds] == [round(BATCH / 0.12, 3)] * 4


def test_a_restart_repeats_steps() -> None:
    history = history_of(events(restart=True))
    assert [step["step"] for step in history.steps] == [10, 20, 30, 40]
    assert len(history.restarts) == 1
    assert [span.doing for span in history.spans].count("restarting") == 1
    assert [one.steps for one in history.intervals] == [10, 10, 10, 10]
    assert history.train_seconds == pytest.approx(4.8)
    # five steps were lost, plus the time until the ranks had restarted
    assert history.goodput < history_of(events()).goodput
    # logged again, these steps replace the earlier ones
    found = events()
    steps = [event for event in found if event["event"] == "step"]
    history = history_of([*found[:-2], {**steps[1], "loss": 9.0}])
    assert [(step["step"], step["loss"]) for step in history.steps] == [(10, 0.1), (20, 9.0)]


def test_what_the_run_before_has_trained_is_not_in_the_goodput() -> None:
    found = events()
    more = [
        {**one, "train_seconds": one["train_seconds"] + 500}
        if one["event"] in ("step", "result")
        else one
        for one in found
    ]
    assert history_of(more).goodput == pytest.approx(history_of(found).goodput)


def test_the_parts_of_each_ranks_time() -> None:
    whole = totals(history_of(events(slow=1)).intervals)
    assert whole
    assert (whole.steps, whole.step) == (40, 40)
    assert whole.seconds == pytest.approx(40 * 0.17)
    fast, slow = whole.ranks[0], whole.ranks[2]
    for rank, work, waiting in ((fast, 0.1, 0.05), (slow, 0.15, 0.0)):
        assert rank.work == pytest.approx(40 * work)
        assert rank.input == pytest.approx(40 * 0.01)
        assert rank.communication == pytest.approx(40 * 0.02)
        assert rank.waiting == pytest.approx(40 * waiting, abs=1e-9)
        parts = rank.compute + rank.communication + rank.input + rank.waiting
        assert parts == pytest.approx(whole.seconds)


def test_a_run_on_fewer_ranks_after_a_restart_counts_from_then() -> None:
    before, after = history_of(events(hosts=2)).intervals, history_of(events(hosts=1)).intervals
    whole = totals([*before, *after])
    assert whole
    assert (whole.steps, len(whole.ranks)) == (40, 2)
    # a run that has just begun
    history = history_of(events()[:2])
    assert history.steps == []
    assert history.goodput == 0
    assert totals(history.intervals) is None
