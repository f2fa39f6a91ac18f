"""Lost hosts, changed host keys and cut links during runs; `python -m tests.faults` has more."""

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.cluster import TWO, Cluster, no_rank_is_left
from tests.cluster.control import ADDRESS, HEAD, NAMES, OTHER, THIRD
from tests.faults.campaign import Campaign, carry_out, problems
from tests.faults.injections import HOST_CLOCK, REAL_CLOCK, RESTORE_KEYS, ROTATE_KEYS
from tests.faults.places import Hosts
from tests.programs import HANG_SECONDS, wait_for

SCRIPTS = Path(__file__).parents[1] / "scripts"
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
    assert fault["noticed"] < 18  # mpirun alone would wait for the host
    assert problems(results) == []
    [said] = tmp_path.glob("*-train.err")
    assert f"using {THIRD} in place of {OTHER}" in said.read_text()


@pytest.mark.long
def test_a_training_survives_lost_ssh_sessions_and_clocks(cluster: Cluster, tmp_path: Path) -> None:
    """Each clock jumps an hour ahead, and back."""
    control = cluster.control
    names = ("kill-session", "kill-followers", "clock-jumps", "head-clock-jumps")
    results: list[dict[str, Any]] = []
    campaign = Campaign(
        Hosts(control), tmp_path, seed=3, faults=len(names), steps=500, save_steps=10,
        pause_seconds=0.5, only=names, compare=False,
    )  # fmt: skip
    with control.changed(dict.fromkeys(NAMES, (HOST_CLOCK, REAL_CLOCK))):
        carry_out(campaign, results.append)
    assert {result.get("fault") for result in results} == {*names, None}
    assert problems(results) == []


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

    wait_for(lambda: listed()["step"] > 0)
    control.bed.kill(HEAD)
    control.bed.boot(HEAD)
    found = listed()
    assert (found["state"], found["doing"]) == ("failed", "interrupted")
    attached = control.start("attach", run)
    try:
        events = f"/opt/ftcluster/runs/{run}/events.jsonl"
        wait_for(lambda: "the head was started again" in control.shell(HEAD, f"cat {events}"))
        wait_for(lambda: listed()["state"] == "running")
        assert control.run("stop", run).returncode == 0
    finally:
        attached.kill()
        attached.communicate()
    assert (listed()["state"], listed()["doing"]) == ("stopped", "")
    no_rank_is_left(cluster)


@contextmanager
def sums(cluster: Cluster) -> Iterator[tuple[str, "subprocess.Popen[str]"]]:
    """Start a script that adds numbers on three hosts; yield the run's id and the command."""
    restarts = ("--max-restarts", "55", "--hang-seconds", "10")
    options = ("--ranks-per-host", "1", *restarts, "--json")
    process = cluster.control.start("run", *options, "--", str(SCRIPTS / "sums.py"))
    assert process.stderr is not None
    try:
        next(line for line in process.stderr if "added" in line)
        runs = json.loads(cluster.control.run("ps", "--json").stdout)
        yield runs[0]["run"], process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)  # this also ends the run
        process.communicate(timeout=HANG_SECONDS)
    no_rank_is_left(cluster)


@pytest.mark.long
def test_a_changed_host_key_ends_a_restart_at_once_and_is_named(cluster: Cluster) -> None:
    """Only a new connection detects the change, because older connections stay open."""
    control = cluster.control
    with sums(cluster) as (run, process):
        with control.changed({OTHER: (ROTATE_KEYS, RESTORE_KEYS)}):
            control.shell(OTHER, "pkill -KILL -f 'python [s]ums.py'")
            began = time.monotonic()
            out, err = process.communicate(timeout=HANG_SECONDS)
            seconds = time.monotonic() - began
        assert process.returncode == 1, err
        cause = f"{OTHER} ({ADDRESS[OTHER]}): ssh from the head fails (host key changed)"
        assert cause in json.loads(out)["error"]
        assert "ftcluster setup" in err
        assert seconds < 100  # a restart waits 120 s for hosts with other failures
        [row] = (r for r in json.loads(control.run("ps", "--json").stdout) if r["run"] == run)
        assert row["why"].startswith(cause)
        assert cause in control.shell(HEAD, "journalctl --quiet --output cat -t ftcluster")
        events = control.shell(HEAD, f"cat /opt/ftcluster/runs/{run}/events.jsonl").splitlines()
        restarts = [line for line in events if '"event": "restart"' in line]
        assert len(restarts) == 1
        assert "signal 9 (SIGKILL)" in restarts[0]


@pytest.mark.long
def test_a_cut_link_is_named_and_waited_for(cluster: Cluster) -> None:
    control, bed = cluster.control, cluster.control.bed
    apart = f"{OTHER} cannot reach {THIRD} ({ADDRESS[THIRD]}:"
    with sums(cluster) as (run, _):
        events = f"/opt/ftcluster/runs/{run}/events.jsonl"

        def written(event: str) -> list[str]:
            lines = control.shell(HEAD, f"cat {events}").splitlines()
            return [line for line in lines if f'"event": "{event}"' in line]

        bed.cut(OTHER, THIRD)
        try:
            wait_for(lambda: written("restart"))
            wait_for(lambda: f"waiting for {THIRD}: link is cut" in written("phase")[-1])
        finally:
            bed.heal(OTHER, THIRD)
        [restart] = written("restart")
        message = json.loads(restart)["message"]
        assert message.startswith(apart)
        assert "timed out" in message
        assert message.endswith("both reach the head; the ranks wait for each other")
        wait_for(lambda: "starting the ranks" in written("phase")[-1])
        assert apart in control.shell(HEAD, "journalctl --quiet --output cat -t ftcluster")


@pytest.mark.long
def test_ranks_that_hang_on_hosts_that_reach_each_other_are_blamed(cluster: Cluster) -> None:
    options = ("--ranks-per-host", "1", "--hang-seconds", "10")
    hangs = (*options, "--", str(SCRIPTS / "hangs.py"))
    done = cluster.control.run("run", "--json", *hangs)
    assert done.returncode == 143, done.stderr  # the exit code of mpirun, whose ranks get SIGTERM
    error = json.loads(done.stdout)["error"]
    assert f"rank 1 on {OTHER}: hung in script" in error
    assert "all hosts reach each other" in error
    no_rank_is_left(cluster)
