"""What verify opens is closed to others, and a host that lets others in is found."""

import re

from tests.cluster.cluster import Cluster
from tests.cluster.control import HEAD, NAMES, OTHER, THIRD
from tests.cluster.hosts.listening import CLOSED, opened_ports


def test_a_host_that_lets_the_control_node_in_is_found(cluster: Cluster) -> None:
    control = cluster.control
    verify = ("setup", cluster.inventory, "--tags", "verify")
    load = "systemctl reload ftcluster-firewall"
    with control.changed({OTHER: ("nft delete table inet ftcluster", load)}):
        with opened_ports(control, NAMES) as opened:
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
    for name in NAMES:
        assert opened[name], f"nothing was heard on {name}"
        assert opened[name] <= CLOSED, sorted(opened[name] - CLOSED)
