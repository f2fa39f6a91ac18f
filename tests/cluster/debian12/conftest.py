"""Two Debian 12 hosts after all stages of setup that need no torch."""

from collections.abc import Iterator

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.control import HEAD, OTHER, bare_hosts

PAIR = (HEAD, OTHER)
CLUSTERS = "/etc/ftcluster/clusters"
# as if no firewall kept the login user from the ports
ALONE = dict.fromkeys(PAIR, (f"mv {CLUSTERS} {CLUSTERS}.away", f"mv {CLUSTERS}.away {CLUSTERS}"))
STAGES = ("--tags", "preflight,system,mesh")


@pytest.fixture(scope="package")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with bare_hosts("bookworm", tmp_path_factory.mktemp("debian12"), PAIR) as control:
        inventory = control.inventory("inventory.ini", PAIR)
        before = control.snapshots()
        done = control.run("setup", inventory, *STAGES)
        assert done.returncode == 0, done.stderr
        yield Cluster(control, inventory, before)
