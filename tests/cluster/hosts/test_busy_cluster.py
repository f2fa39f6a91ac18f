"""Commands that change or describe a cluster while a training uses some of its hosts."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.cluster import FEW_PAIRS, TWO, Cluster, no_rank_is_left
from tests.cluster.control import HEAD, NAMES, OTHER, THIRD
from tests.faults.training import MODEL
from tests.programs import wait_for

pytestmark = pytest.mark.long
ALL = ("--nodes", "3", "--ranks-per-host", "1")


def test_a_training_continues_while_hosts_leave_and_join_and_runs_are_removed(
    cluster: Cluster, tmp_path: Path
) -> None:
    control = cluster.control
    ended = control.run("train", "quickstart", *TWO, *FEW_PAIRS, "--json")
    assert ended.returncode == 0, ended.stderr
    before = json.loads(ended.stdout)["run"]
    options = ("training.max_steps=100000", "training.logging_steps=10", "--detach")
    launched = control.run("train", *MODEL, *TWO, *options)
    assert launched.returncode == 0, launched.stderr
    [run] = launched.stdout.split()

    def row() -> dict[str, Any]:
        rows = json.loads(control.run("ps", "--json").stdout)
        return next(each for each in rows if each["run"] == run)

    try:
        wait_for(lambda: row()["step"] > 0)
        refused = control.run("hosts", "remove", OTHER)
        assert refused.returncode == 1
        assert f"run {run} uses {OTHER}" in refused.stderr
        removed = control.run("hosts", "remove", THIRD)
        assert removed.returncode == 0, removed.stderr
        assert "the cluster has 2 hosts" in removed.stdout

        page = tmp_path / "run.html"
        reported = control.run("report", run, "-o", str(page), "--json")
        assert reported.returncode == 0, reported.stderr
        text = re.sub(r"<[^>]+>|\s+", " ", page.read_text())
        assert re.search(r"state +running", text)
        kept = control.run("clean", run)
        assert kept.returncode == 1
        assert f"{run} is running" in kept.stderr
        every = ("--all", "--done", "--resumable", "--yes", "--json")
        cleaned = control.run("clean", *every)
        assert cleaned.returncode == 0, cleaned.stderr
        names = json.loads(cleaned.stdout)["removed"]
        assert before in names
        assert run not in names

        step = row()["step"]
        added = control.run("hosts", "add", THIRD)
        assert added.returncode == 0, added.stderr
        assert f"added: {THIRD}; the cluster now has 3 hosts" in added.stdout
        now = row()
        assert (now["state"], now["hosts"]) == ("running", [HEAD, OTHER])
        assert now["step"] > step
        events = control.shell(HEAD, f"cat /opt/ftcluster/runs/{run}/events.jsonl")
        assert '"event": "restart"' not in events
    finally:
        assert control.run("stop", run).returncode == 0
    trained = control.run("train", "quickstart", *ALL, *FEW_PAIRS, "--json")
    assert trained.returncode == 0, trained.stderr
    assert json.loads(trained.stdout)["world_size"] == len(NAMES)
    no_rank_is_left(cluster)
