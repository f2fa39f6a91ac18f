"""The cluster that the control node remembers."""

import json
import subprocess
import sys
from pathlib import Path

from ftcluster.ansible.inventory import inventory_path
from ftcluster.cluster.saved import Cluster, learn, recall, remember
from ftcluster.paths import state_dir
from tests.unit.clusters import cluster, host


def test_the_bundled_inventory_is_that_of_the_installation_which_asks() -> None:
    """Another one's may be gone."""
    remember(Cluster((inventory_path("localhost"),), cluster(host("localhost"))))
    saved = json.loads((state_dir() / "cluster.json").read_text(encoding="utf-8"))
    assert saved["inventories"] == ["localhost"]
    assert recall().inventories == (inventory_path("localhost"),)


CHANGE = """
import sys
from dataclasses import replace
from pathlib import Path
from ftcluster.cluster.saved import change
from ftcluster.provision.host_history import keep
for number in range(10):
    change((Path("/i.ini"),), lambda saved: replace(saved, options=(*saved.options, "x")))
    keep({"inventory": sys.argv[1] + str(number), "hosts": [], "pairs": [], "warnings": []})
"""


def test_commands_at_the_same_time_lose_nothing_of_each_other(tmp_path: Path) -> None:
    remember(Cluster((Path("/i.ini"),), cluster(host("a"))))
    paths = {"PYTHONPATH": ":".join(sys.path), "XDG_STATE_HOME": str(tmp_path / "state")}
    racing = [
        subprocess.Popen([sys.executable, "-c", CHANGE, one], env=paths) for one in ("a", "b", "c")
    ]
    assert [one.wait() for one in racing] == [0, 0, 0]
    assert len(recall().options) == 30
    checks = json.loads((state_dir() / "checks.json").read_text(encoding="utf-8"))
    assert len(checks["inventories"]) == 30


def test_what_a_head_says_is_only_for_the_cluster_that_it_is_of() -> None:
    saved = Cluster((Path("/i.ini"),), cluster(host("a"), host("b")))
    remember(saved)
    learn((Path("/other.ini"),), "intel-2.8", "")
    assert recall() == saved
    learn((Path("/i.ini"),), "intel-2.8", "")
    assert {one.stack for one in recall().facts.hosts} == {"intel-2.8"}
    assert recall().as_of
