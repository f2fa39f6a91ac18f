"""The loss of a host in a training; `python -m tests.faults` has more."""

from pathlib import Path
from typing import Any

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.control import OTHER, THIRD
from tests.faults.campaign import Campaign, carry_out, problems
from tests.faults.places import Hosts

SPARE = ("--nodes", "2", "--spares", "1")


@pytest.mark.long
def test_a_spare_takes_the_place_of_a_lost_host(cluster: Cluster, tmp_path: Path) -> None:
    results: list[dict[str, Any]] = []
    campaign = Campaign(
        Hosts(cluster.control), tmp_path, seed=2, faults=1, steps=50, save_steps=10,
        pause_seconds=0.5, only=("worker-off",), compare=False, launch=SPARE,
    )  # fmt: skip
    carry_out(campaign, results.append)
    fault, run = results
    assert (fault["kind"], run["kind"]) == ("fault", "run")
    assert fault["host"] == OTHER
    assert fault["noticed"] < 18  # mpirun would wait for the host
    assert problems(results) == []
    [said] = tmp_path.glob("*-train.err")
    assert f"using {THIRD} in place of {OTHER}" in said.read_text()
