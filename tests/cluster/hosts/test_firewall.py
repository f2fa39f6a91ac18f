"""What listens while ranks are at work is closed to others, and who lets others in is found."""

import re

from tests.cluster.cluster import FEW_PAIRS, Cluster
from tests.cluster.control import HEAD, NAMES, OTHER, THIRD

WATCH = """
rm -f /run/stop
systemd-run -q --unit heard sh -c '
  while [ ! -e /run/stop ]; do ss -Hltn; sleep 0.2; done | awk "{print \\$4}" | sort -u > /run/new
  mv /run/new /run/heard
'
"""
STOP = "touch /run/stop; while [ ! -e /run/heard ]; do sleep 0.1; done; cat /run/heard"
CLEAR = "rm -f /run/stop /run/heard"


def ports(sockets: str) -> set[int]:
    """Those of the sockets that other hosts can reach."""
    return {int(s.rpartition(":")[2]) for s in sockets.split() if not s.startswith("127.")}


def test_what_listens_in_verify_and_in_a_training_is_closed(cluster: Cluster) -> None:
    control = cluster.control
    before = {name: control.shell(name, "ss -Hltn | awk '{print $4}'") for name in NAMES}
    with control.changed(dict.fromkeys(NAMES, (WATCH, CLEAR))):
        try:
            proved = control.run("setup", cluster.inventory, "--tags", "verify")
            done = control.run("train", "quickstart", "--ranks-per-host", "1", FEW_PAIRS,
                               "training.max_steps=3")  # fmt: skip
        finally:
            heard = {name: control.shell(name, STOP) for name in NAMES}
    assert proved.returncode == done.returncode == 0, proved.stderr + done.stderr
    assert "their ports are closed to this machine, which is not one of them" in proved.stdout
    closed = {*range(29500, 30000), *range(32768, 61000)}
    for name in NAMES:
        new = ports(heard[name]) - ports(before[name])
        assert new, f"nothing was heard on {name}"
        assert new <= closed, sorted(new - closed)


def test_a_host_that_lets_the_control_node_in_is_found(cluster: Cluster) -> None:
    control = cluster.control
    verify = ("setup", cluster.inventory, "--tags", "verify")
    load = "systemctl reload ftcluster-firewall"
    with control.changed({OTHER: ("nft delete table inet ftcluster", load)}):
        warned = control.run(*verify)
        refused = control.run(*verify, "-e", "ftcluster_firewall=required")
    what = rf"{OTHER}: TCP ports of training are open to 198\.18\.0\.1, which is not in the cluster"
    assert warned.returncode == 0, warned.stderr
    assert re.search(what, warned.stderr), warned.stderr
    assert "closed to this machine" not in warned.stdout
    assert refused.returncode == 1
    assert re.search(what, refused.stderr), refused.stderr
    for name in (HEAD, THIRD):
        assert f"{name}: TCP ports" not in warned.stderr
