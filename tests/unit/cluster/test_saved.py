"""The saved cluster of the control node."""

import contextlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ftcluster.ansible.inventory import inventory_path
from ftcluster.cluster.saved import Cluster, learn, recall, remember
from ftcluster.errors import FtclusterError
from ftcluster.launch.record import read_record
from ftcluster.paths import state_dir
from ftcluster.provision.host_history import read_history
from tests.unit.clusters import cluster, host


def test_the_bundled_inventory_is_that_of_the_installation_which_asks() -> None:
    """The bundled inventory of another installation may no longer exist."""
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


def test_a_cluster_that_was_saved_before_heads_had_a_record() -> None:
    remember(Cluster((Path("/i.ini"),), cluster(host("a"), host("b"))))
    file = state_dir() / "cluster.json"
    document = json.loads(file.read_text(encoding="utf-8"))
    assert document.pop("format") == 1
    del document["record"], document["as_of"]
    file.write_text(json.dumps(document), encoding="utf-8")
    assert [host.name for host in recall().facts.hosts] == ["a", "b"]


def test_a_cluster_of_a_newer_version_is_refused_and_kept() -> None:
    remember(Cluster((Path("/i.ini"),), cluster(host("a"))))
    file = state_dir() / "cluster.json"
    newer = json.dumps({**json.loads(file.read_text(encoding="utf-8")), "format": 99})
    file.write_text(newer, encoding="utf-8")
    why = r"cluster\.json was written by a newer ftcluster \(format 99, .*: upgrade this ftcluster"
    with pytest.raises(FtclusterError, match=why):
        recall()
    assert file.read_text(encoding="utf-8") == newer


@pytest.mark.parametrize("read", [lambda: read_record("a-1"), lambda: read_history("/i.ini")])
def test_a_state_of_a_newer_version_is_not_taken_for_a_damaged_one(read: Any) -> None:
    files = [state_dir() / "runs/a-1/run.json", state_dir() / "checks.json"]
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text('{"format": 99}', encoding="utf-8")
    with contextlib.suppress(FtclusterError):
        assert read() is None
    assert [file.read_text(encoding="utf-8") for file in files] == ['{"format": 99}'] * 2
