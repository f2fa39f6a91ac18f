"""Two ranks of verify on this machine, without mpirun."""

import json
import os
import subprocess
import sys
from dataclasses import asdict
from typing import Any

from ftcluster_common.launch import Host
from ftcluster_train.probe import REQUEST_VARIABLE, Request, read_answers
from ftcluster_train.supervisor import free_port


def answers(request: Request) -> list[dict[str, Any]]:
    shared = {
        **os.environ, REQUEST_VARIABLE: json.dumps(asdict(request)), "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "ftcluster_train.probe"],
            env={**shared, "PMI_RANK": str(rank)}, stdout=subprocess.PIPE, text=True,
        )
        for rank in range(len(request.hosts))
    ]  # fmt: skip
    lines = [line for rank in ranks for line in rank.communicate(timeout=60)[0].splitlines()]
    found = read_answers(lines)
    assert [answer["error"] for answer in found] == [""] * len(ranks)
    return found


def test_links_are_measured_where_an_interface_has_a_known_speed() -> None:
    hosts = (Host("a", "127.0.0.1"), Host("b", "127.0.0.1"))
    first, second = answers(Request(hosts, "", "", mbits={"a": {"lo": 1000, "eth0": 10}, "b": {}}))
    assert (first["interface_mbits"], second["interface_mbits"]) == (1000, None)
    [link] = first["links"]
    assert link["ranks"] == [0, 1]
    assert link["mb_per_second"] > 1
    assert "speed" not in first  # which takes longer
    assert all("links" not in answer for answer in answers(Request(hosts, "", "", mbits={"a": {}})))
