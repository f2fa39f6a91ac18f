"""Two Debian 12 hosts with every stage of setup that needs no torch; ../hosts has the others."""

from dataclasses import replace

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.control import HEAD, OTHER, Control

PAIR = (HEAD, OTHER)
CLUSTERS = "/etc/ftcluster/clusters"
# as if nobody's firewall kept the login user from the ports
ALONE = dict.fromkeys(PAIR, (f"mv {CLUSTERS} {CLUSTERS}.away", f"mv {CLUSTERS}.away {CLUSTERS}"))
STAGES = ("--tags", "preflight,system,mesh")


@pytest.fixture(scope="package")
def cluster(debian12_hosts: Control, tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    control = replace(debian12_hosts, folder=tmp_path_factory.mktemp("debian12"), hosts=PAIR)
    inventory = control.inventory("inventory.ini", PAIR)
    before = control.snapshots()
    done = control.run("setup", inventory, *STAGES)
    assert done.returncode == 0, done.stderr
    return Cluster(control, inventory, before)
