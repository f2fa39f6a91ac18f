"""An orderly reboot of a host during a training; `python -m tests.faults` tests long trainings."""

import json
from typing import Any

import pytest

from tests.cluster.cluster import TWO, Cluster, no_rank_is_left
from tests.cluster.control import HEAD, OTHER
from tests.faults.places import Hosts
from tests.programs import wait_for


@pytest.mark.long
def test_a_run_whose_head_is_rebooted_is_stopped_and_resumed_by_hand(cluster: Cluster) -> None:
    control, place, host = cluster.control, Hosts(cluster.control), HEAD

    def started(*arguments: str) -> str:
        done = control.run("train", *arguments, *TWO, "--detach", "--json")
        assert done.returncode == 0, done.stderr
        return str(json.loads(done.stdout)["run"])

    def listed(run: str) -> dict[str, Any]:
        runs = json.loads(control.run("ps", "--json").stdout)
        return next(row for row in runs if row["run"] == run)

    def events(run: str, kind: str) -> list[dict[str, Any]]:
        lines = control.shell(HEAD, f"cat /opt/ftcluster/runs/{run}/events.jsonl").splitlines()
        return [event for event in map(json.loads, lines) if event["event"] == kind]

    run = started("quickstart", "--min-nodes", "1", "training.max_steps=20000")
    wait_for(lambda: listed(run)["step"] > 0)
    before = place.init(host)
    control.bed.exec_(host, "systemctl", "reboot", "--no-block")
    wait_for(lambda: place.init(host) not in (None, before))
    control.bed.boot(host)  # waits until ssh answers
    row = listed(run)
    assert (row["state"], row["doing"]) == ("stopped", "")
    why = f"{HEAD} is shutting down: systemd sent SIGTERM to the supervisor at "
    assert row["why"].startswith(why)
    assert f"{run} stopped: {why}" in control.run("ps").stdout
    assert why in control.shell(HEAD, "journalctl --no-pager -t ftcluster")
    no_rank_is_left(cluster)
    assert events(run, "restart") == []
    saved = events(run, "checkpoint")[-1]["step"]
    # the checkpoint is not older than the last logged step, so nothing is lost
    assert saved >= row["step"] > 0

    resumed = started("--resume", run)
    try:
        wait_for(lambda: listed(resumed)["step"] > saved)
        notices = [event["message"] for event in events(resumed, "notice")]
        assert any(f"resumed after step {saved}" in message for message in notices)
    finally:
        assert control.run("stop", resumed).returncode == 0
    assert listed(resumed)["why"].startswith("stopped with ftcluster stop by ")
    no_rank_is_left(cluster)


@pytest.mark.long
def test_a_run_continues_without_a_host_that_is_rebooted(cluster: Cluster) -> None:
    control, place = cluster.control, Hosts(cluster.control)
    options = ("--min-nodes", "1", "training.max_steps=20000", "--detach", "--json")
    launched = control.run("train", "quickstart", *TWO, *options)
    assert launched.returncode == 0, launched.stderr
    run = json.loads(launched.stdout)["run"]

    def events(kind: str) -> list[dict[str, Any]]:
        lines = control.shell(HEAD, f"cat /opt/ftcluster/runs/{run}/events.jsonl").splitlines()
        return [event for event in map(json.loads, lines) if event["event"] == kind]

    try:
        wait_for(lambda: events("step"))
        before = place.init(OTHER)
        control.bed.exec_(OTHER, "systemctl", "reboot", "--no-block")
        wait_for(lambda: events("restart"))
        [restart] = events("restart")
        cause = f"{OTHER} is shutting down: systemd sent SIGTERM to its ranks at "
        assert restart["message"].startswith(cause)
        assert cause in control.shell(HEAD, "journalctl --no-pager -t ftcluster")
        wait_for(lambda: len(events("start")) == 2)
        assert events("start")[1]["world_size"] == 1
        notices = [event["message"] for event in events("notice")]
        assert any(notice.startswith(f"continuing without {OTHER}") for notice in notices), notices
        wait_for(lambda: place.init(OTHER) not in (None, before))
    finally:
        assert control.run("stop", run).returncode == 0
        control.bed.boot(OTHER)  # waits until ssh answers
    no_rank_is_left(cluster)
