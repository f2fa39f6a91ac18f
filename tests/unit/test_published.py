"""Predictions for trainings that others have published."""

import pytest

from bench.published import TRAININGS, errors, minutes, table

SPEEDS = {"stock": {"samples_per_second": 2.0}, "ours": {"samples_per_second": 6.0}}


def test_minutes_are_samples_by_the_speed_of_all_cores() -> None:
    one = TRAININGS[0]
    # 11,004 samples; 1 sample per second and core on 32 cores
    assert minutes(one, 2.0, 2) == pytest.approx(11_004 / 32 / 60)


def test_ours_has_the_range_of_theirs_in_the_same_precision() -> None:
    results = {("mrpc-bert", "fp32"): SPEEDS, ("squad", "bf16"): SPEEDS}
    off = errors(results, 2, "fp32")
    assert off == pytest.approx([5.73 / 7.77, 568.5 / 682], rel=0.01)
    rows = table(results, 2).splitlines()
    assert "| 5.7 min | -26% | **1.9 min** (1.9 min to 2.6 min) |" in rows[2]
    # QQP's sentences are shorter, which helps ftcluster but not programs that pad
    assert rows[3].endswith("| 9.5 h | -17% |  |")
    assert len(rows) == 2 + 2 + 2 + 1  # heads, fp32, bf16, and the unpublished combination
