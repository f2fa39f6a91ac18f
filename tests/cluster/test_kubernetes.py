"""The commands and variables of pods complete a training as processes of two networks here.

The variables that the operators add are those in their sources, which `ftcluster.export.kubernetes`
names.
"""

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.cluster import FEW_PAIRS
from tests.cluster.conftest import Machine
from tests.cluster.pods import Node, processes, two_nodes
from tests.programs import wait_for

pytestmark = pytest.mark.needs("root", "mount", "veth")
SECONDS = 240


@pytest.fixture(scope="module")
def facts(machine: Machine, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return two nodes like this machine with one core each, so that threads do not compete."""
    planned = machine.home.run("plan", "quickstart", "--json")
    [host] = json.loads(planned.stdout)["facts"]["hosts"]
    cpu = min(os.sched_getaffinity(0))
    node = {"node": 0, "cores": 1, "memory_bytes": host["memory_bytes"], "cpus": str(cpu)}
    host |= {"cores": 1, "threads": 1, "numa": [node]}
    path = tmp_path_factory.mktemp("facts") / "facts.json"
    path.write_text(json.dumps({"hosts": [{**host, "name": name} for name in ("node1", "node2")]}))
    return path


def export(
    machine: Machine, facts: Path, kind: str, *more: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the data of the ConfigMap, and the other manifests by kind."""
    done = machine.home.run(
        "export", "k8s", "quickstart", *FEW_PAIRS, "max_steps=6", "--facts", str(facts),
        "--kind", kind, "--image", "node:1", "--name", "pairs", *more,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    config, *others = yaml.safe_load_all(done.stdout)
    return config["data"], {one["kind"]: one["spec"] for one in others}


def volume_of(machine: Machine, folder: Path) -> Path:
    """Return a volume with the model, because pods have no package index here."""
    volume = folder / "volume"
    shutil.copytree(machine.model, volume / "models" / machine.model.name)
    return volume


def succeeded(process: "subprocess.Popen[bytes]", node: Node, container: str) -> None:
    assert process.wait(SECONDS) == 0, node.output(container)


def prepare(nodes: list[Node], pod: Mapping[str, Any]) -> None:
    """Run the preparation of both pods at once in the same folder."""
    started = [node.start(pod, "prepare", {}) for node in nodes]
    for process, node in zip(started, nodes, strict=True):
        succeeded(process, node, "prepare")


def events(volume: Path, kind: str) -> list[dict[str, Any]]:
    lines = (volume / "runs/pairs/events.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == kind]


def rank_of(network: str) -> int:
    """Return the process of the rank in a network."""
    for pid in processes(network):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if words[1:3] == [b"-m", b"ftcluster_train.engine.rank"]:
            return pid
    raise AssertionError(f"no rank in {network}")


@pytest.mark.long
def test_a_pytorchjob_trains_and_goes_on_after_a_rank_was_killed(
    machine: Machine, facts: Path, tmp_path: Path
) -> None:
    data, specs = export(
        machine, facts, "pytorchjob", "ranks_per_host=1", "save_strategy=steps", "save_steps=2"
    )
    spec = specs["PyTorchJob"]
    pod, policy = spec["pytorchReplicaSpecs"]["Worker"]["template"], spec["elasticPolicy"]
    added = {
        "PET_NPROC_PER_NODE": spec["nprocPerNode"],
        "PET_RDZV_ENDPOINT": "pairs-worker-0:23456",
        "PET_RDZV_BACKEND": policy["rdzvBackend"],
        "PET_NNODES": f"{policy['minReplicas']}:{policy['maxReplicas']}",
        "PET_MAX_RESTARTS": str(policy["maxRestarts"]),
        "PET_RDZV_CONF": ",".join(f"{one['key']}={one['value']}" for one in policy["rdzvConf"]),
        "PYTHONUNBUFFERED": "1",
    }
    names = ["pairs-worker-0", "pairs-worker-1"]
    stack = machine.home.prefix.joinpath("current").resolve()
    volume = volume_of(machine, tmp_path)
    with two_nodes(tmp_path, stack, names, data["job.json"]) as nodes:
        prepare(nodes, pod)
        ranks = [node.start(pod, "pytorch", added) for node in nodes]
        wait_for((volume / "runs/pairs/checkpoints/checkpoint-2/manifest.json").exists, SECONDS)
        os.kill(rank_of(nodes[1].network), signal.SIGKILL)
        for process, node in zip(ranks, nodes, strict=True):
            succeeded(process, node, "pytorch")
    [first, second] = events(volume, "start")
    assert first["world_size"] == second["world_size"] == 2
    assert any("resumed after step" in event["message"] for event in events(volume, "notice"))
    [result] = events(volume, "result")
    assert (volume / "runs/pairs/model/model.safetensors").exists(), result
    placement = events(volume, "placement")[-1]["ranks"]
    assert [one["host"] for one in placement] == names


@pytest.mark.long
def test_a_trainjob_trains(machine: Machine, facts: Path, tmp_path: Path) -> None:
    data, specs = export(machine, facts, "trainjob", "ranks_per_host=1")
    [job] = specs["TrainingRuntime"]["template"]["spec"]["replicatedJobs"]
    pod, trainer = job["template"]["spec"]["template"], specs["TrainJob"]["trainer"]
    # the names that JobSet gives to pods in the headless service of the TrainJob
    names = [f"pairs-node-0-{index}.pairs" for index in range(2)]
    added = {
        "PET_NNODES": str(trainer["numNodes"]),
        "PET_NPROC_PER_NODE": str(trainer["numProcPerNode"]),
        "PET_MASTER_ADDR": names[0],
        "PET_MASTER_PORT": "29500",
    }
    stack = machine.home.prefix.joinpath("current").resolve()
    volume = volume_of(machine, tmp_path)
    with two_nodes(tmp_path, stack, names, data["job.json"]) as nodes:
        prepare(nodes, pod)
        ranks = [
            node.start(pod, "node", {**added, "PET_NODE_RANK": str(index)})
            for index, node in enumerate(nodes)
        ]
        for process, node in zip(ranks, nodes, strict=True):
            succeeded(process, node, "node")
    [start] = events(volume, "start")
    assert (start["world_size"], start["backend"]) == (2, "gloo")
    assert (volume / "runs/pairs/model/model.safetensors").exists()
