"""Faults in a training on this machine; `python -m tests.faults` has all of them."""

from pathlib import Path
from typing import Any

from tests.cluster.conftest import Machine
from tests.faults.campaign import Campaign, carry_out, problems
from tests.faults.places import Localhost

FAULTS = ("kill-rank", "kill-supervisor", "term-rank")  # the last one ends it; it is resumed


def test_a_training_survives_and_counts_each_sample_once(machine: Machine, tmp_path: Path) -> None:
    results: list[dict[str, Any]] = []
    campaign = Campaign(
        Localhost(machine.home), tmp_path, faults=len(FAULTS), steps=100, save_steps=10,
        pause_seconds=0.5, only=FAULTS, compare=False,
    )  # fmt: skip
    carry_out(campaign, results.append)
    assert {one.get("fault") for one in results} == {*FAULTS, None}
    assert problems(results) == []
