"""The cluster that the control node remembers."""

import json

from ftcluster.ansible.inventory import inventory_path
from ftcluster.cluster.saved import Cluster, recall, remember
from ftcluster.paths import state_dir
from tests.unit.clusters import cluster, host


def test_the_bundled_inventory_is_that_of_the_installation_which_asks() -> None:
    """Another one's may be gone."""
    remember(Cluster((inventory_path("localhost"),), cluster(host("localhost"))))
    saved = json.loads((state_dir() / "cluster.json").read_text(encoding="utf-8"))
    assert saved["inventories"] == ["localhost"]
    assert recall().inventories == (inventory_path("localhost"),)
