"""The loss of a host in a training; `python -m tests.faults` has more."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.cluster import TWO, Cluster, no_rank_is_left
from tests.cluster.control import HEAD, OTHER, THIRD
from tests.faults.campaign import Campaign, carry_out, problems
from tests.faults.places import Hosts
from tests.programs import wait_for

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


@pytest.mark.long
def test_a_run_whose_head_lost_its_power_is_interrupted_until_somebody_attaches(
    cluster: Cluster,
) -> None:
    control = cluster.control
    launched = control.run(
        "train", "quickstart", *TWO, "--detach", "--json", "training.max_steps=20000"
    )
    assert launched.returncode == 0, launched.stderr
    run = json.loads(launched.stdout)["run"]

    def listed() -> dict[str, Any]:
        runs = json.loads(control.run("ps", "--json").stdout)
        return next(one for one in runs if one["run"] == run)

    wait_for(lambda: listed()["step"] > 0, 120)
    control.bed.kill(HEAD)
    control.bed.boot(HEAD)
    found = listed()
    assert (found["state"], found["doing"]) == ("failed", "interrupted")
    attached = control.start("attach", run)
    try:
        events = f"/opt/ftcluster/runs/{run}/events.jsonl"
        wait_for(lambda: "the head was started again" in control.shell(HEAD, f"cat {events}"), 120)
        wait_for(lambda: listed()["state"] == "running", 60)
        assert control.run("stop", run).returncode == 0
    finally:
        attached.kill()
        attached.communicate()
    assert (listed()["state"], listed()["doing"]) == ("stopped", "")
    no_rank_is_left(cluster)
