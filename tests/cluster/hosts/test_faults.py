"""The loss of a host in a training; `python -m tests.faults` has more."""

from pathlib import Path
from typing import Any

from tests.cluster.cluster import Cluster
from tests.faults.campaign import Campaign, carry_out, problems
from tests.faults.places import Hosts


def test_a_training_survives_the_loss_of_a_host(cluster: Cluster, tmp_path: Path) -> None:
    results: list[dict[str, Any]] = []
    campaign = Campaign(
        Hosts(cluster.control), tmp_path, seed=2, faults=1, steps=50, save_steps=10,
        pause_seconds=0.5, only=("worker-off",), compare=False,
    )  # fmt: skip
    carry_out(campaign, results.append)
    fault, run = results
    assert (fault["kind"], run["kind"]) == ("fault", "run")
    assert fault["noticed"] < 18  # mpirun would wait for the host
    assert problems(results) == []
