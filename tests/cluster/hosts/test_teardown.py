"""Teardown of the cluster that the other tests of this folder use; it runs last."""

from tests.cluster.cluster import Cluster


def test_teardown_undoes_what_setup_and_runs_have_made(cluster: Cluster) -> None:
    control = cluster.control
    gone = control.run("teardown", cluster.inventory, "-e", "ftcluster_remove_runs=true")
    assert gone.returncode == 0, gone.stderr
    control.purge_packages()
    assert control.snapshots() == cluster.before
    train = control.run("train")
    assert "no cluster has been set up from here" in train.stderr
