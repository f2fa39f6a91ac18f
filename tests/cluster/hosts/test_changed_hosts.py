"""Hosts that were reinstalled, or that left the inventory, and the next setup."""

import json
import re
from pathlib import Path

import pytest

from tests.cluster.cluster import FEW_PAIRS, TWO, Cluster, no_rank_is_left
from tests.cluster.control import HEAD, LINK_LIBRARY, OTHER, PIN_LOGINS, THIRD

ALL = ("--nodes", "3", "--ranks-per-host", "1")


@pytest.mark.long
def test_setup_heals_a_host_that_was_reinstalled(cluster: Cluster, tmp_path: Path) -> None:
    """The host has an empty disk and new SSH keys; the operator learns the keys by hand."""
    control, bed = cluster.control, cluster.control.bed
    [known] = map(Path, re.findall(r"UserKnownHostsFile=(\S+)", bed.inventory()))
    old_keys = known.read_text()
    bed.reinstall(THIRD)
    control.shell(THIRD, PIN_LOGINS.format(0))
    if control.python:
        control.shell(THIRD, LINK_LIBRARY)
    new_keys = known.read_text()
    fresh = {"ANSIBLE_SSH_CONTROL_PATH_DIR": str(tmp_path / "cp")}
    try:
        known.write_text(old_keys)
        refused = control.run("setup", cluster.inventory, "--accept-new-host-keys", **fresh)
    finally:
        known.write_text(new_keys)
    assert refused.returncode == 1
    [line] = [line for line in refused.stderr.splitlines() if line.startswith(f"  {THIRD}: ")]
    assert "somebody may intercept the connection" in line
    assert f"{known}:3" in line
    assert "nothing was changed" in refused.stderr

    early = control.run("train", "quickstart", *ALL, *FEW_PAIRS, **fresh)
    assert early.returncode == 1, early.stdout
    assert THIRD in early.stderr
    assert "ftcluster setup" in early.stderr
    no_rank_is_left_on_set_up_hosts(cluster)

    healed = control.run("setup", cluster.inventory, **fresh)
    assert healed.returncode == 0, healed.stderr
    assert "mpirun reached 3 hosts with the same" in healed.stdout
    trained = control.run("train", "quickstart", *ALL, *FEW_PAIRS, "--json", **fresh)
    assert trained.returncode == 0, trained.stderr
    assert json.loads(trained.stdout)["world_size"] == 3
    no_rank_is_left(cluster)


def no_rank_is_left_on_set_up_hosts(cluster: Cluster) -> None:
    for name in (HEAD, OTHER):
        ranks = cluster.control.bed.exec_(name, "pgrep", "-u", "ftcluster", "-a")
        assert (ranks.returncode, ranks.stdout) == (1, ""), f"{name}: {ranks.stdout}"


@pytest.mark.long
def test_a_host_with_a_run_cannot_leave_the_inventory(cluster: Cluster) -> None:
    control = cluster.control
    without = control.inventory("without.ini", (HEAD, THIRD))
    options = ("training.max_steps=20000", "--detach", "--json")
    launched = control.run("train", "quickstart", *TWO, *options)
    assert launched.returncode == 0, launched.stderr
    run = json.loads(launched.stdout)["run"]
    before = control.snapshots()
    try:
        refused = control.run("setup", without)
        assert refused.returncode == 1, refused.stdout
        [line] = [line for line in refused.stderr.splitlines() if line.startswith(f"  {HEAD}: ")]
        assert f"run {run} uses {OTHER}, missing from the inventory" in line
        assert f"ftcluster stop {run}" in line
        assert control.snapshots() == before
        again = control.run("setup", cluster.inventory, "--tags", "mesh,verify", "--limit", HEAD)
        assert again.returncode == 0, again.stderr
    finally:
        assert control.run("stop", run).returncode == 0
    no_rank_is_left(cluster)
