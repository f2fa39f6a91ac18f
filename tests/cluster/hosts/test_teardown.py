"""Bare again: the last that happens to the cluster of the other tests."""

import json

from tests.cluster.hosts.canary import canary
from tests.cluster.hosts.cluster import HEAD, NAMES, Cluster

# The hard link is made by root: not every kernel keeps the account from making it.
PLANT = """
set -e
for place in /opt/ftcluster/runs /opt/ftcluster/mesh /var/lib/ftcluster; do
  mkdir $place/planted
  cd $place/planted
  ln -s {0} folder
  ln -s {0}/file file
  ln {0}/file name
  chown -h ftcluster . folder file
done
"""


def test_teardown_removes_everything_but_runs_and_then_these(cluster: Cluster) -> None:
    with canary(cluster, HEAD) as target:
        cluster.control.bed.exec_(HEAD, "sh", "-c", PLANT.format(target), check=True)
        teardown_leaves_nothing(cluster)


def teardown_leaves_nothing(cluster: Cluster) -> None:
    control, bed = cluster.control, cluster.control.bed
    run = "/opt/ftcluster/runs/quickstart-1"
    assert control.as_ranks(HEAD, f"mkdir -p {run}/model").returncode == 0
    kept = control.run("teardown", cluster.inventory)
    assert kept.returncode == 0, kept.stderr
    assert f"{HEAD}: runs and their models stay in /opt/ftcluster/runs" in kept.stderr
    assert bed.exec_(HEAD, "ls", run, check=True).stdout == "model\n"
    gone = control.run("teardown", cluster.inventory, "-e", "ftcluster_remove_runs=true")
    assert gone.returncode == 0, gone.stderr
    for name in NAMES:
        assert control.snapshot(name) == cluster.before[name], name
    nothing = control.run("teardown", cluster.inventory, "--json")
    assert json.loads(nothing.stdout)["changed"] == 0, nothing.stderr
    train = control.run("train")
    assert "no cluster has been set up from here" in train.stderr
