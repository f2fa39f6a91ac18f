"""Manifests are what Kubeflow's operators accept, with the numbers of the plan."""

import json
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from kubeflow.training import ApiClient
from kubeflow_trainer_api import models

from ftcluster.cluster.saved import Cluster, remember
from ftcluster.export.kubernetes import PYTORCH, TRAIN
from ftcluster.export.pods import GIB
from ftcluster_common.protocol.job import recipe_of
from tests.unit.clusters import cluster, host
from tests.unit.export import trainer_schema
from tests.unit.shell import Shell

KINDS = (PYTORCH, TRAIN)
OPTIONS = [
    "--image", "registry/node:1", "--name", "pairs", "--namespace", "team", "--claim", "work",
    "--token-secret", "hub", "--node-selector", "cpu=spr", "--node-selector", "example.com/pool=",
    "--max-restarts", "5",
]  # fmt: skip


@pytest.fixture(autouse=True)
def nodes() -> None:
    each = [
        host(name, cores=64, numa_nodes=2, memory_bytes=256 * GIB, network_address=address)
        for name, address in (("n1", "10.0.0.1"), ("n2", "10.0.0.2"), ("n3", "10.0.0.3"))
    ]
    remember(Cluster(inventories=(), facts=cluster(*each)))


@pytest.fixture
def export(shell: Shell) -> Callable[..., dict[str, Any]]:
    def manifests(kind: str, *more: str) -> dict[str, Any]:
        text = shell(["export", "k8s", "quickstart", "--kind", kind, *OPTIONS, *more]).out
        return {document["kind"]: document for document in yaml.safe_load_all(text)}

    return manifests


def accepted(document: Mapping[str, Any]) -> Any:
    """Return the part of a manifest that its schema accepts: without unknown fields."""
    kind, group = document["kind"], document["apiVersion"].split("/")[0]
    if kind == "PyTorchJob":
        client, text = ApiClient(), SimpleNamespace(data=json.dumps(document))
        return client.sanitize_for_serialization(client.deserialize(text, f"KubeflowOrgV1{kind}"))
    prefix = "TrainerV1alpha1" if group == "trainer.kubeflow.org" else "IoK8sApiCoreV1"
    return getattr(models, f"{prefix}{kind}").from_dict(document).to_dict()


@pytest.mark.parametrize("kind", KINDS)
def test_the_schemas_have_every_field(kind: str, export: Callable[..., dict[str, Any]]) -> None:
    for name, document in export(kind).items():
        if name != "ConfigMap":
            assert accepted(document) == document


def test_the_newest_trainer_has_every_field(export: Callable[..., dict[str, Any]]) -> None:
    facts = json.loads(trainer_schema.FILE.read_text())
    documents = export(TRAIN)
    for kind in ("TrainingRuntime", "TrainJob"):
        assert trainer_schema.problems(facts[kind], documents[kind]["spec"], kind) == []
    spec = documents["TrainJob"]["spec"]
    spec["trainer"] |= {"numNodes": "3", "processes": 2}
    del spec["runtimeRef"]
    assert sorted(trainer_schema.problems(facts["TrainJob"], spec, "TrainJob")) == [
        "TrainJob.runtimeRef is missing",
        "TrainJob.trainer.numNodes is '3', not of type integer",
        "TrainJob.trainer.processes is unknown",
    ]


def test_the_schemas_see_mistakes(export: Callable[..., dict[str, Any]]) -> None:
    documents = export(PYTORCH) | export(TRAIN)
    job, runtime = documents["PyTorchJob"], documents["TrainingRuntime"]
    job["spec"]["elasticPolicy"]["minNodes"] = 1
    assert accepted(job) != job
    runtime["spec"]["template"]["spec"]["replicatedJobs"][0]["replica"] = 1
    assert accepted(runtime) != runtime
    runtime["spec"]["mlPolicy"]["numNodes"] = "3"
    with pytest.raises(ValueError, match="numNodes"):
        accepted(runtime)


def pod_of(documents: Mapping[str, Any]) -> Any:
    """The specification of the pods with ranks."""
    if "PyTorchJob" in documents:
        worker = documents["PyTorchJob"]["spec"]["pytorchReplicaSpecs"]["Worker"]
        return worker["template"]["spec"]
    [job] = documents["TrainingRuntime"]["spec"]["template"]["spec"]["replicatedJobs"]
    return job["template"]["spec"]["template"]["spec"]


@pytest.mark.parametrize("kind", KINDS)
def test_every_pod_has_what_it_needs(kind: str, export: Callable[..., dict[str, Any]]) -> None:
    documents = export(kind)
    assert {one["metadata"]["namespace"] for one in documents.values()} == {"team"}
    assert {one["metadata"]["name"] for one in documents.values()} == {"pairs", "pairs-job"}
    spec = pod_of(documents)
    assert spec["nodeSelector"] == {"cpu": "spr", "example.com/pool": ""}
    volumes = {volume.pop("name"): volume for volume in spec["volumes"]}
    assert volumes["ftcluster"] == {"persistentVolumeClaim": {"claimName": "work"}}
    assert volumes["job"] == {"configMap": {"name": "pairs-job"}}
    assert volumes["shared-memory"]["emptyDir"]["medium"] == "Memory"
    [container], [prepare] = spec["containers"], spec["initContainers"]
    for one in (container, prepare):
        assert one["image"] == "registry/node:1"
        assert {mount["name"] for mount in one["volumeMounts"]} == volumes.keys()
        amounts = one["resources"]  # of 64 cores with two threads, and 256 GiB
        assert amounts["requests"] == amounts["limits"] == {"cpu": "126", "memory": "230Gi"}
    # the token is where something is downloaded, and nowhere else
    secret = {"secretKeyRef": {"name": "hub", "key": "HF_TOKEN"}}
    assert {"name": "HF_TOKEN", "valueFrom": secret} in prepare["env"]
    assert "HF_TOKEN" not in json.dumps(container)


@pytest.mark.parametrize("kind", KINDS)
def test_ranks_have_the_numbers_of_the_plan(
    kind: str, export: Callable[..., dict[str, Any]]
) -> None:
    documents = export(kind, "--nodes", "2")
    [container] = pod_of(documents)["containers"]
    env = {one["name"]: one.get("value") for one in container["env"]}
    assert env["FTCLUSTER_BACKEND"] == "gloo"
    assert json.loads(env["FTCLUSTER_PLACEMENT"]) == {
        "kinds": [{"env": {}, "ranks": [
            {"cpus": "1-31", "threads": 30, "memory": [0]},
            {"cpus": "32-63", "threads": 31, "memory": [1]},
        ]}],
        "hosts": [[0, 2]],
    }  # fmt: skip
    assert env["LD_PRELOAD"].endswith("libtcmalloc_minimal.so.4")
    assert env["TCMALLOC_RELEASE_RATE"] == "0"
    assert env["THP_MEM_ALLOC_ENABLE"] == "1"
    assert env["HF_HOME"].startswith("/mnt/ftcluster/")
    job = json.loads(documents["ConfigMap"]["data"]["job.json"])
    assert (job["run"], job["nodes"], job["shared_folder"]) == ("pairs", 2, True)
    assert recipe_of(job["recipe"]).batch_size == 32
    if kind == PYTORCH:
        spec = documents["PyTorchJob"]["spec"]
        assert spec["nprocPerNode"] == "2"
        assert spec["pytorchReplicaSpecs"]["Worker"]["replicas"] == 2
    else:
        assert documents["TrainJob"]["spec"]["trainer"] == {"numNodes": 2, "numProcPerNode": 2}
        assert documents["TrainingRuntime"]["spec"]["mlPolicy"] == {"numNodes": 2, "torch": {}}


def test_the_elastic_policy(export: Callable[..., dict[str, Any]]) -> None:
    policy = export(PYTORCH)["PyTorchJob"]["spec"]["elasticPolicy"]
    assert (policy["minReplicas"], policy["maxReplicas"], policy["maxRestarts"]) == (3, 3, 5)
    policy = export(PYTORCH, "--min-nodes", "1")["PyTorchJob"]["spec"]["elasticPolicy"]
    assert (policy["minReplicas"], policy["maxReplicas"]) == (1, 3)
