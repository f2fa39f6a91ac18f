"""Manifests are valid for Kubernetes and Kubeflow's operators, with the numbers of the plan."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import kubernetes
import pytest
import yaml
from kubeflow.training import ApiClient
from kubeflow_trainer_api import models

from ftcluster.cluster.saved import Cluster, remember
from ftcluster.export.kubernetes import PYTORCH, TRAIN
from ftcluster.export.pod_template import VALUE
from ftcluster.export.pods import GIB
from ftcluster.operations.export.export_k8s import CLAIM, KubernetesRequest, export_k8s
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
# a template as platform teams write it
TEMPLATE = """\
apiVersion: v1
kind: Pod
metadata:
  labels: {team: nlp}
  annotations: {cluster-autoscaler.kubernetes.io/safe-to-evict: "false"}
spec:
  imagePullSecrets: [{name: registry}]
  nodeSelector: {example.com/zone: a}
  priorityClassName: training
  tolerations:
    - {key: dedicated, operator: Equal, value: training, effect: NoSchedule}
    - {key: node.kubernetes.io/unreachable, operator: Exists, tolerationSeconds: 60}
"""


@pytest.fixture(autouse=True)
def nodes() -> None:
    each = [
        host(name, cores=64, numa_nodes=2, memory_bytes=256 * GIB, network_address=address)
        for name, address in (("n1", "10.0.0.1"), ("n2", "10.0.0.2"), ("n3", "10.0.0.3"))
    ]
    remember(Cluster(inventories=(), facts=cluster(*each)))


@pytest.fixture
def template(tmp_path: Path) -> Path:
    path = tmp_path / "pod.yaml"
    path.write_text(TEMPLATE)
    return path


@pytest.fixture
def export(shell: Shell, template: Path) -> Callable[..., dict[str, Any]]:
    def manifests(kind: str, *more: str) -> dict[str, Any]:
        options = (*OPTIONS, "--pod-template", str(template), *more)
        text = shell(["export", "k8s", "quickstart", "--kind", kind, *options]).out
        return {document["kind"]: document for document in yaml.safe_load_all(text)}

    return manifests


def accepted(document: Mapping[str, Any]) -> Any:
    """Return the part of a manifest that its schema allows, without unknown fields."""
    kind, group = document["kind"], document["apiVersion"].split("/")[0]
    if group == "trainer.kubeflow.org":
        return getattr(models, f"TrainerV1alpha1{kind}").from_dict(document).to_dict()
    client: Any = ApiClient() if group == "kubeflow.org" else kubernetes.client.ApiClient()
    prefix = "KubeflowOrgV1" if group == "kubeflow.org" else "V1"
    text = SimpleNamespace(data=json.dumps(document))
    return client.sanitize_for_serialization(client.deserialize(text, f"{prefix}{kind}"))


@pytest.mark.parametrize("kind", KINDS)
def test_the_schemas_have_every_field(kind: str, export: Callable[..., dict[str, Any]]) -> None:
    for document in export(kind).values():
        assert accepted(document) == document


@pytest.mark.parametrize("text", ["claim", "copy_pod"])
def test_the_core_api_has_every_field_of_the_volume(text: str, template: Path) -> None:
    exported = export_k8s(
        KubernetesRequest(
            words=("quickstart",), image="node:1", namespace="team", pod_template=str(template)
        )
    )
    documents = list(yaml.safe_load_all(getattr(exported, text)))
    for document in documents:
        assert accepted(document) == document
    document = documents[-1]
    assert document["metadata"]["namespace"] == "team"
    if text == "claim":
        assert document["metadata"]["name"] == CLAIM
        assert document["spec"]["accessModes"] == ["ReadWriteMany"]
    else:
        [volume] = document["spec"]["volumes"]
        assert volume["persistentVolumeClaim"] == {"claimName": CLAIM}
        assert document["spec"]["imagePullSecrets"] == [{"name": "registry"}]


def test_the_resource_definitions_have_every_field(
    export: Callable[..., dict[str, Any]],
) -> None:
    facts = json.loads(trainer_schema.FILE.read_text())
    documents = export(PYTORCH) | export(TRAIN)
    for kind in ("PyTorchJob", "TrainingRuntime", "TrainJob"):
        assert trainer_schema.problems(facts[kind], documents[kind]["spec"], kind) == []
    policy = documents["PyTorchJob"]["spec"]["runPolicy"]
    policy["ttlSecondsAfterFinished"] = "a week"
    assert trainer_schema.problems(facts["PyTorchJob"], documents["PyTorchJob"]["spec"], "job") == [
        "job.runPolicy.ttlSecondsAfterFinished is 'a week', not of type integer"
    ]
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


def template_of(documents: Mapping[str, Any]) -> Any:
    """Return the pod template of the ranks."""
    if "PyTorchJob" in documents:
        return documents["PyTorchJob"]["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]
    [job] = documents["TrainingRuntime"]["spec"]["template"]["spec"]["replicatedJobs"]
    return job["template"]["spec"]["template"]


def pod_of(documents: Mapping[str, Any]) -> Any:
    """Return the pod specification of the ranks."""
    return template_of(documents)["spec"]


@pytest.mark.parametrize("kind", KINDS)
def test_every_pod_has_what_it_needs(kind: str, export: Callable[..., dict[str, Any]]) -> None:
    documents = export(kind)
    assert {each["metadata"]["namespace"] for each in documents.values()} == {"team"}
    assert {each["metadata"]["name"] for each in documents.values()} == {"pairs", "pairs-job"}
    spec = pod_of(documents)
    volumes = {volume.pop("name"): volume for volume in spec["volumes"]}
    assert volumes["ftcluster"] == {"persistentVolumeClaim": {"claimName": "work"}}
    assert volumes["job"] == {"configMap": {"name": "pairs-job"}}
    assert volumes["shared-memory"]["emptyDir"]["medium"] == "Memory"
    assert volumes["scratch"]["emptyDir"].keys() == {"sizeLimit"}
    [container], [prepare] = spec["containers"], spec["initContainers"]
    assert {mount["name"] for mount in prepare["volumeMounts"]} == volumes.keys()
    assert {mount["name"] for mount in container["volumeMounts"]} == volumes.keys() - {"token"}
    scratch = {"ephemeral-storage": "3Gi"}
    for each, amounts in (
        # for 64 cores with 2 threads each, and 256 GiB
        (container, {"cpu": "126", "memory": "230Gi"}),
        (prepare, {"cpu": "2", "memory": "4Gi"}),
    ):
        assert each["image"] == "registry/node:1"
        assert each["imagePullPolicy"] == "Always"
        # equal values, so that kubelet's CPU manager gives the ranks exclusive cores
        assert each["resources"]["requests"] == each["resources"]["limits"] == amounts | scratch
        assert each["securityContext"] == {
            "allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        }  # fmt: skip
    # only containers that download have the token, as a file
    assert volumes["token"]["secret"]["secretName"] == "hub"
    [path] = [each["value"] for each in prepare["env"] if each["name"] == "HF_TOKEN_PATH"]
    [mount] = [each for each in prepare["volumeMounts"] if each["name"] == "token"]
    [item] = volumes["token"]["secret"]["items"]
    assert path == f"{mount['mountPath']}/{item['path']}"
    assert "HF_TOKEN" not in json.dumps(container)


@pytest.mark.parametrize("kind", KINDS)
def test_pods_have_the_fields_of_the_template(
    kind: str, export: Callable[..., dict[str, Any]]
) -> None:
    documents = export(kind)
    spec, wanted = pod_of(documents), yaml.safe_load(TEMPLATE)
    for name in ("imagePullSecrets", "priorityClassName", "tolerations"):
        assert spec[name] == wanted["spec"][name]
    assert spec["nodeSelector"] == {"example.com/zone": "a", "cpu": "spr", "example.com/pool": ""}
    metadata = template_of(documents)["metadata"]
    assert metadata["labels"]["team"] == "nlp"
    assert metadata["annotations"] == wanted["metadata"]["annotations"]


@pytest.mark.parametrize("kind", KINDS)
def test_only_pods_of_the_training_reach_each_other(
    kind: str, export: Callable[..., dict[str, Any]]
) -> None:
    documents = export(kind)
    spec = documents["NetworkPolicy"]["spec"]
    selected = spec["podSelector"]["matchLabels"]
    assert selected.items() <= template_of(documents)["metadata"]["labels"].items()
    assert selected["app.kubernetes.io/instance"] == "pairs"
    assert spec["ingress"] == [{"from": [{"podSelector": {"matchLabels": selected}}]}]
    assert {port["port"] for rule in spec["egress"] for port in rule.get("ports", ())} == {
        53, 5353, 443,
    }  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_finished_pods_are_removed_after_a_week(
    kind: str, export: Callable[..., dict[str, Any]]
) -> None:
    documents = export(kind)
    if kind == PYTORCH:
        job = documents["PyTorchJob"]["spec"]["runPolicy"]
    else:
        job = documents["TrainingRuntime"]["spec"]["template"]["spec"]
    assert job["ttlSecondsAfterFinished"] == 7 * 24 * 3600


@pytest.mark.parametrize("kind", KINDS)
def test_all_objects_have_the_recommended_labels(
    kind: str, export: Callable[..., dict[str, Any]]
) -> None:
    documents = export(kind)
    for metadata in (
        *(each["metadata"] for each in documents.values()), template_of(documents)["metadata"],
    ):  # fmt: skip
        labels = metadata["labels"]
        parts = {name.removeprefix("app.kubernetes.io/") for name in labels}
        assert parts >= {"name", "instance", "component", "version", "managed-by"}
        assert all(VALUE.fullmatch(label) for label in labels.values())


@pytest.mark.parametrize("kind", KINDS)
def test_ranks_have_the_numbers_of_the_plan(
    kind: str, export: Callable[..., dict[str, Any]]
) -> None:
    documents = export(kind, "--nodes", "2")
    [container] = pod_of(documents)["containers"]
    env = {each["name"]: each.get("value") for each in container["env"]}
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
