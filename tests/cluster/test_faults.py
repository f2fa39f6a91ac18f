"""Faults during a training on this machine; `python -m tests.faults` has all kinds."""

from pathlib import Path
from typing import Any

import pytest

from tests.cluster.conftest import Machine
from tests.faults.campaign import Campaign, carry_out, problems
from tests.faults.places import Localhost

FAULTS = ("kill-rank", "term-rank")  # the last fault ends the training, which is then resumed
MORE_FAULTS = ("kill-rank", "kill-supervisor", "term-rank")


@pytest.mark.parametrize("names", [FAULTS, pytest.param(MORE_FAULTS, marks=pytest.mark.long)])
def test_a_training_survives_and_counts_each_sample_once(
    machine: Machine, tmp_path: Path, names: tuple[str, ...]
) -> None:
    results: list[dict[str, Any]] = []
    campaign = Campaign(
        Localhost(machine.home), tmp_path, faults=len(names), steps=100, save_steps=10,
        pause_seconds=0.5, only=names, compare=False,
    )  # fmt: skip
    carry_out(campaign, results.append)
    assert {one.get("fault") for one in results} == {*names, None}
    assert problems(results) == []
