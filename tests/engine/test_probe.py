"""Two ranks of verify on this machine."""

import json
import os
from pathlib import Path
from typing import Any

from ftcluster_common.launch import Host
from ftcluster_train.probe import Request, examine
from ftcluster_train.supervisor import free_port
from tests.engine.forks import start


def _rank(rank: int, folder: Path, request: Request, port: int) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    answer: dict[str, Any] = {}
    examine(request, rank, answer)
    (folder / str(rank)).write_text(json.dumps(answer))


def test_links_are_measured_where_an_interface_has_a_known_speed(tmp_path: Path) -> None:
    hosts = (Host("a", "127.0.0.1"), Host("b", "127.0.0.1"))
    request = Request(hosts, "", "", mbits={"a": {"lo": 1000, "eth0": 10}, "b": {}})
    start(_rank, 2, tmp_path, request, free_port())
    first, second = (json.loads((tmp_path / str(rank)).read_text()) for rank in (0, 1))
    assert (first["interface_mbits"], second["interface_mbits"]) == (1000, None)
    [link] = first["links"]
    assert link["ranks"] == [0, 1]
    assert link["mb_per_second"] > 1
    assert "speed" not in first  # which takes longer
