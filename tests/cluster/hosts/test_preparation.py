"""Trainings that end before their launch."""

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


def test_a_run_whose_control_node_lost_its_power_before_the_launch(cluster: Cluster) -> None:
    control = cluster.control
    process = control.start("train", "quickstart", *TWO, ROWS, "--name", "unplugged")
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("prepare model and data"):
            break
    for pid in (*descendants(process.pid), process.pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.communicate()

    def preparing() -> list[str]:
        lines = control.shell(HEAD, "pgrep -u ftcluster -af unplugged || true").splitlines()
        return [line for line in lines if "ftcluster_train" in line]

    wait_for(lambda: not preparing(), 120)
    runs = control.shell(HEAD, "ls /opt/ftcluster/runs").split()
    [run] = [name for name in runs if name.startswith("unplugged-")]
    attached = control.run("attach", run)
    assert attached.returncode == 1, attached.stdout
    assert f"{run} has not been launched" in attached.stderr
    assert "Traceback" not in attached.stderr
    assert control.run("clean", run).returncode == 0
    no_rank_is_left(cluster)
