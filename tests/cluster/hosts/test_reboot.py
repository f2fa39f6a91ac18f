"""An orderly reboot of a host with a training; `python -m tests.faults` has it in long ones."""

import json
from typing import Any

import pytest

from tests.cluster.cluster import TWO, Cluster, no_rank_is_left
from tests.cluster.control import HEAD, OTHER
from tests.faults.places import Hosts
from tests.programs import wait_for


@pytest.mark.long
@pytest.mark.parametrize("host", [HEAD, OTHER])
def test_a_run_whose_host_is_rebooted_is_stopped_and_resumed_by_hand(
    cluster: Cluster, host: str
) -> None:
    control, place = cluster.control, Hosts(cluster.control)

    def started(*arguments: str) -> str:
        done = control.run("train", *arguments, *TWO, "--detach", "--json")
        assert done.returncode == 0, done.stderr
        return str(json.loads(done.stdout)["run"])

    def listed(run: str) -> dict[str, Any]:
        runs = json.loads(control.run("ps", "--json").stdout)
        return next(one for one in runs if one["run"] == run)

    def events(run: str, kind: str) -> list[dict[str, Any]]:
        lines = control.shell(HEAD, f"cat /opt/ftcluster/runs/{run}/events.jsonl").splitlines()
        return [one for one in map(json.loads, lines) if one["event"] == kind]

    # it may continue with one host, as it does if a host loses its power
    run = started("quickstart", "--min-nodes", "1", "training.max_steps=20000")
    wait_for(lambda: listed(run)["step"] > 0, 120)
    before = place.init(host)
    control.bed.exec_(host, "systemctl", "reboot", "--no-block")
    wait_for(lambda: place.init(host) not in (None, before), 120)
    control.bed.boot(host)  # waits until ssh answers
    found = listed(run)
    assert (found["state"], found["doing"]) == ("stopped", "")
    no_rank_is_left(cluster)
    assert events(run, "restart") == []
    saved = events(run, "checkpoint")[-1]["step"]
    assert saved >= found["step"] > 0  # that of the last log; nothing is lost

    resumed = started("--resume", run)
    try:
        wait_for(lambda: listed(resumed)["step"] > saved, 120)
        said = [event["message"] for event in events(resumed, "notice")]
        assert any(f"resumed after step {saved}" in message for message in said)
    finally:
        assert control.run("stop", resumed).returncode == 0
    no_rank_is_left(cluster)
