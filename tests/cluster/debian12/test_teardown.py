"""Teardown reverts the changes that setup made on hosts."""

import json

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.control import HEAD, OTHER
from tests.cluster.debian12.canary import canary
from tests.cluster.debian12.conftest import PAIR, STAGES

# root makes the hard link, because some kernels do not let the account make it
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
OTHER_CLUSTER = "echo /srv/other ftcluster > /etc/ftcluster/clusters/other"
SHARED = """
getent passwd ftcluster | cut -d: -f1
ls /etc/security/limits.d/ | grep ftcluster
nft list tables | grep -o 'inet ftcluster' | tr ' ' _
systemctl is-enabled ftcluster-firewall.service 2> /dev/null | grep enabled
true
"""
SHARED_PARTS = ["ftcluster", "ftcluster.conf", "inet_ftcluster", "enabled"]
RUN = "/opt/ftcluster/runs/quickstart-1"
GONE = 61999  # a user id that no account has


@pytest.mark.long
def test_a_second_setup_changes_nothing(cluster: Cluster) -> None:
    """This test runs few stages; ../hosts/test_setup.py runs all stages twice."""
    control = cluster.control
    again = control.run("setup", cluster.inventory, *STAGES, "--json")
    hosts = json.loads(again.stdout)["hosts"]
    assert {name: host["changed"] for name, host in hosts.items()} == dict.fromkeys(PAIR, 0)


def test_teardown_removes_everything_but_runs_and_then_these(cluster: Cluster) -> None:
    control = cluster.control
    control.shell(OTHER, OTHER_CLUSTER)
    preflight = ("setup", cluster.inventory, "--limit", OTHER, "--tags", "preflight")
    refused = control.run(*preflight, "-e", "ftcluster_user=another")
    assert refused.returncode == 1
    assert f"{OTHER}: its home, limits and firewall belong to the account ftcluster" in (
        refused.stderr
    )
    assert "/srv/other" in refused.stderr
    with canary(control, HEAD) as target:
        control.shell(HEAD, PLANT.format(target))
        assert control.as_ranks(HEAD, f"mkdir -p {RUN}/model").returncode == 0
        # as if somebody had removed an earlier account by hand
        control.shell(HEAD, f"mkdir {RUN}/old && chown {GONE} {RUN}/old")
        number = control.shell(HEAD, "id -u ftcluster").strip()
        kept = control.run("teardown", cluster.inventory)
        assert kept.returncode == 0, kept.stderr
        assert f"{HEAD}: runs and their models stay in /opt/ftcluster/runs" in kept.stderr
        assert control.shell(HEAD, f"ls {RUN}") == "model\nold\n"
        assert f"{HEAD}: {RUN}/old (user id {GONE}) was not removed, and the next" in kept.stdout
        assert control.shell(HEAD, f"find / -xdev -uid {number}") == ""
        # the last cluster that OTHER belongs to determines what its clusters share
        assert (
            f"{OTHER}: left limits, huge pages and firewall and the account ftcluster"
            in kept.stderr
        )
        assert "ftcluster" not in control.shell(HEAD, SHARED)
        assert control.shell(OTHER, SHARED).split() == SHARED_PARTS
        control.shell(OTHER, "rm /etc/ftcluster/clusters/other")
        gone = control.run("teardown", cluster.inventory, "-e", "ftcluster_remove_runs=true")
        assert gone.returncode == 0, gone.stderr
        assert "libtcmalloc-minimal4" in control.shell(OTHER, "dpkg-query -W")
        control.purge_packages()
        assert control.snapshots() == cluster.before


@pytest.mark.long
def test_a_second_teardown_changes_nothing(cluster: Cluster) -> None:
    words = ("teardown", cluster.inventory, "-e", "ftcluster_remove_runs=true", "--json")
    first = cluster.control.run(*words)
    assert first.returncode == 0, first.stderr
    second = cluster.control.run(*words)
    assert json.loads(second.stdout)["changed"] == 0, second.stderr
