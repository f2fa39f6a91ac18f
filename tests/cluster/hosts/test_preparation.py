"""Trainings whose preparation or control node ends before the launch."""

import contextlib
import os
import signal

from ftcluster_train.io.activity import descendants
from tests.cluster.cluster import TWO, Cluster, no_rank_is_left
from tests.cluster.control import HEAD, OTHER
from tests.programs import wait_for

ROWS = "data=generated:train=160,validation=40,seed=97"  # no other test has prepared them
TOO_LITTLE = 200_000_000  # bytes; importing torch takes more


def test_a_preparation_that_is_out_of_memory_is_named_with_its_host(cluster: Cluster) -> None:
    control = cluster.control
    try:
        control.bed.memory(OTHER, TOO_LITTLE)
        done = control.run("train", "quickstart", *TWO, ROWS)
    finally:
        control.bed.memory(OTHER, None)
    assert done.returncode == 1, done.stdout
    message = "engine.prepare was killed by the kernel: the host is out of memory"
    assert f"{OTHER}: {message}" in done.stderr
    assert "does not start" not in done.stderr, "the stack is not to blame"
    no_rank_is_left(cluster)


def test_a_run_whose_control_node_lost_its_power_is_launched_by_another_one(
    cluster: Cluster,
) -> None:
    control = cluster.control
    process = control.start(
        "train", "quickstart", *TWO, ROWS, "batch_size=8", "--name", "unplugged"
    )
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("prepare model and data"):
            break
    for pid in (*descendants(process.pid), process.pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.communicate()
    runs = control.shell(HEAD, "ls /opt/ftcluster/runs").split()
    [run] = [name for name in runs if name.startswith("unplugged-")]
    folder = f"/opt/ftcluster/runs/{run}"
    early = control.run("attach", run)  # the preparation continues without a control node
    if early.returncode != 0:
        assert f"{run} has no prepared model and data yet" in early.stderr
        assert "Traceback" not in early.stderr
        wait_for(lambda: "launch.json" in control.shell(HEAD, f"ls {folder}"), 120)
        attached = control.run("attach", run)
        assert attached.returncode == 0, attached.stderr
    events = control.shell(HEAD, f"cat {folder}/events.jsonl")
    assert '"state": "done"' in events
    assert '"event": "restart"' not in events
    no_rank_is_left(cluster)
