"""Several real hosts, set up once, for what trains on them and for who tries to get in."""

from pathlib import Path

import pytest

from tests.cluster.hosts.cluster import NAMES, Cluster
from tests.cluster.hosts.control import Control
from tests.cluster.testbeds import bare, needs_root, open_control

__all__ = ["bare", "open_control"]


@pytest.fixture(scope="session")
def cluster(bare: Control) -> Cluster:
    inventory = bare.inventory("inventory.ini", NAMES)
    done = bare.run("setup", inventory)
    assert done.returncode == 0, done.stderr
    return Cluster(bare, inventory)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    needs_root(items, Path(__file__).parent, lambda _: 0)
