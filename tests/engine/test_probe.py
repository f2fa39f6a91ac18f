"""Two ranks of verify on this machine."""

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ftcluster_common.launch import MPI_VARIABLES, Host
from ftcluster_train.probe import REQUEST_VARIABLE, Request, read_answers
from ftcluster_train.supervisor import free_port

BIN = Path(sys.executable).parent


def answers(request: Request) -> list[dict[str, Any]]:
    environment = {
        **os.environ, **MPI_VARIABLES, "PATH": f"{BIN}:{os.environ['PATH']}",
        REQUEST_VARIABLE: json.dumps(asdict(request)), "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    ranks = len(request.hosts)
    done = subprocess.run(
        [BIN / "mpirun", "-n", str(ranks), sys.executable, "-m", "ftcluster_train.probe"],
        env=environment, capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    found = read_answers(done.stdout.splitlines())
    assert [answer["error"] for answer in found] == [""] * ranks
    return found


def test_links_are_measured_where_an_interface_has_a_known_speed() -> None:
    hosts = (Host("a", "127.0.0.1"), Host("b", "127.0.0.1"))
    first, second = answers(Request(hosts, "", "", mbits={"a": {"lo": 1000, "eth0": 10}, "b": {}}))
    assert (first["interface_mbits"], second["interface_mbits"]) == (1000, None)
    [link] = first["links"]
    assert link["ranks"] == [0, 1]
    assert link["mb_per_second"] > 1
    assert "speed" not in first  # which takes longer
