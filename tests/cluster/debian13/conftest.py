"""Two Debian 13 hosts with every stage of setup that needs no torch.

The stages stack and verify are left out: for its Python 3.13, pip finds torch here only as the
build with gigabytes of CUDA packages.
"""

from collections.abc import Iterator

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.control import HEAD, OTHER, bare_hosts

PAIR = (HEAD, OTHER)
STAGES = ("--tags", "preflight,system,mesh")


@pytest.fixture(scope="package")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with bare_hosts("trixie", tmp_path_factory.mktemp("debian13"), PAIR) as control:
        inventory = control.inventory("inventory.ini", PAIR)
        before = control.snapshots()
        done = control.run("setup", inventory, *STAGES)
        assert done.returncode == 0, done.stderr
        yield Cluster(control, inventory, before)
