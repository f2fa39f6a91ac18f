"""Linters of policies and Kubernetes' JSON schemas accept the manifests, on demand.

FTCLUSTER_TEST_POLICIES is the `bin` folder of an environment with both programs:

    python3 -m venv policies && policies/bin/pip install checkov kubernetes-validate
"""

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from ftcluster.cluster.saved import Cluster, remember
from ftcluster.export.kubernetes import PYTORCH, TRAIN
from ftcluster.operations.export.export_k8s import KubernetesRequest, export_k8s
from tests.unit.clusters import cluster, host

BIN = Path(os.environ.get("FTCLUSTER_TEST_POLICIES", ""))
VERSIONS = ("1.29.0", "1.33.0")  # versions of the core API
pytestmark = pytest.mark.skipif(
    "FTCLUSTER_TEST_POLICIES" not in os.environ,
    reason="on demand: set FTCLUSTER_TEST_POLICIES to a folder with the linters",
)


def as_core(document: dict[str, Any]) -> dict[str, Any] | None:
    """Return a core Kubernetes object that creates the same pods; None if there are none.

    The linters do not know Kubeflow's resource definitions.
    """
    spec = document.get("spec", {})
    if document["kind"] == "PyTorchJob":
        kept = spec["runPolicy"]["ttlSecondsAfterFinished"]
        template = spec["pytorchReplicaSpecs"]["Worker"]["template"]
    elif document["kind"] == "TrainingRuntime":
        job_set = spec["template"]["spec"]
        kept = job_set["ttlSecondsAfterFinished"]
        template = job_set["replicatedJobs"][0]["template"]["spec"]["template"]
    else:
        return None if document["kind"] == "TrainJob" else document
    template["spec"]["restartPolicy"] = "Never"
    job = {"template": template, "ttlSecondsAfterFinished": kept}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": document["metadata"], "spec": job}


@pytest.fixture(params=(PYTORCH, TRAIN))
def manifests(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return a file with all objects of an exported training, as core Kubernetes objects."""
    remember(Cluster(inventories=(), facts=cluster(host("n1", cores=16), host("n2", cores=16))))
    exported = export_k8s(
        KubernetesRequest(
            words=("quickstart",),
            kind=request.param,
            image=f"registry.example.com/node@sha256:{'0' * 64}",
            namespace="team",
            token_secret="hub",
        )
    )
    documents = list(yaml.safe_load_all(exported.text))
    documents += [yaml.safe_load(exported.claim), *yaml.safe_load_all(exported.copy_pod)]
    path = tmp_path / "manifests.yaml"
    path.write_text(yaml.safe_dump_all(filter(None, map(as_core, documents))))
    return path


def run(*words: object) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(list(map(str, words)), capture_output=True, text=True, check=False)


def test_checkov_finds_no_violation(manifests: Path) -> None:
    checkov = (
        BIN / "checkov", "--framework", "kubernetes", "--skip-download", "--compact",
        "--skip-check", "CKV_K8S_8,CKV_K8S_9",  # probes: no pod serves requests
    )  # fmt: skip
    done = run(*checkov, "-f", manifests)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Failed checks: 0" in done.stdout
    # the linter must find a planted problem
    weakened = manifests.read_text().replace("readOnlyRootFilesystem: true", "")
    manifests.write_text(weakened)
    done = run(*checkov, "-f", manifests)
    assert "CKV_K8S_22" in done.stdout


@pytest.mark.parametrize("version", VERSIONS)
def test_the_schemas_of_kubernetes_accept_all_objects(manifests: Path, version: str) -> None:
    validate = (BIN / "kubernetes-validate", "--strict", "--quiet", "-k", version)
    done = run(*validate, manifests)
    assert done.returncode == 0, done.stdout + done.stderr
    manifests.write_text(manifests.read_text().replace("sizeLimit:", "size:"))
    assert run(*validate, manifests).returncode != 0
