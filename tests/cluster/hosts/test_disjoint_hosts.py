"""Trainings at once on disjoint hosts of one cluster, each with its own head, and the queue."""

import json
from pathlib import Path

from tests.cluster.cluster import FEW_PAIRS, Cluster, no_rank_is_left
from tests.cluster.control import HEAD, OTHER, SECONDS, THIRD
from tests.programs import PATIENCE_SECONDS, wait_for

SUM = str(Path(__file__).parents[1] / "scripts" / "sum.py")
LONG = (*FEW_PAIRS, "num_train_epochs=500", "--ranks-per-host", "1")  # until it is stopped
LEASE = "cat /opt/ftcluster/runs/.lease || true"  # it may not be there yet


def test_trainings_on_disjoint_hosts_and_a_run_that_waits_for_both(
    cluster: Cluster, tmp_path: Path
) -> None:
    control = cluster.control
    started = [
        control.start("train", "quickstart", *LONG, "--detach", "--hosts", hosts)
        for hosts in (HEAD, f"{THIRD},{OTHER}")
    ]
    ended = [process.communicate(timeout=SECONDS) for process in started]
    assert [process.returncode for process in started] == [0, 0], ended
    first, second = (out.strip() for out, _ in ended)
    try:
        for host, run in ((HEAD, first), (OTHER, second), (THIRD, second)):
            # its third line is the expected end, once the ranks have done some steps
            wait_for(
                lambda host=host: control.shell(host, LEASE).splitlines()[2:] > ["0"],
                PATIENCE_SECONDS,
            )
            assert control.shell(host, LEASE).startswith(f"{run} ")

        pair = ("--ranks-per-host", "1", "--hosts", f"{OTHER},{HEAD}", "--", SUM)
        refused = control.run("run", *pair)
        assert refused.returncode == 1
        for host, run in ((HEAD, first), (OTHER, second)):
            assert f"{host}: run {run} of " in refused.stderr
        assert "until about" in refused.stderr
        assert "--queue" in refused.stderr

        queued = control.run("run", "--queue", "--detach", *pair).stdout.strip()
        listed = control.run("ps", "--json")
        rows = {row["run"]: row for row in json.loads(listed.stdout)}
        assert rows[first]["hosts"] == [HEAD]
        assert rows[second]["hosts"] == [THIRD, OTHER]
        assert {rows[run]["state"] for run in (first, second, queued)} == {"running"}
        assert rows[queued]["doing"].startswith(f"waiting (place 1 in the queue): {HEAD}: ")
    finally:
        # another control node, which has started none of them
        other = {"XDG_STATE_HOME": str(tmp_path / "state")}
        stopped = control.run("stop", first, second, "-i", cluster.inventory, "--json", **other)
    assert stopped.returncode == 0, stopped.stderr
    assert {row["run"]: row["state"] for row in json.loads(stopped.stdout)} == {
        first: "stopped", second: "stopped",
    }  # fmt: skip
    done = control.run("attach", queued)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == f"rank 0 of 2 on {HEAD}: 3"
    again = json.loads(control.run("train", "--resume", second, "--dry-run", "--json").stdout)
    assert [host["name"] for host in again["hosts"]] == [THIRD, OTHER]
    no_rank_is_left(cluster)
