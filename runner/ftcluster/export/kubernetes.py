"""Kubernetes manifests of a training, for Kubeflow's operators. Pure functions only.

What the operators add to pods, and what they accept, is as read in their sources: training operator
1.9, Trainer 2.3, MPI operator 0.8. No manifest asks Trainer for Intel MPI: its API has `Intel`, but
its controller rejects it (kubeflow/trainer issue 4025).
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ftcluster.export.commented_yaml import dump
from ftcluster.export.pods import STACK, VOLUME, Resources
from ftcluster.launch.mpirun import launch_host, stack_link
from ftcluster.planning.plan import LaunchPlan
from ftcluster_common.job import Job
from ftcluster_common.launch import (
    BACKEND_VARIABLE,
    GLOO,
    IMPI,
    MPI_VARIABLES,
    PLACEMENT_VARIABLE,
    RUN_VARIABLE,
    label_pattern,
    rank_placement,
)
from ftcluster_common.network import PROVIDER_VARIABLE
from ftcluster_common.recipe import Recipe

PYTORCH, TRAIN, MPI = "pytorchjob", "trainjob", "mpijob"
BACKENDS = {PYTORCH: GLOO, TRAIN: GLOO, MPI: IMPI}  # torchrun's ranks are not connected by MPI
ACCOUNT = 1000  # user and group of the node image
HOME = "/home/ftcluster"
SSH_PORT = 2222  # an account without rights cannot listen at 22
JOB_FOLDER = "/opt/ftcluster/job"  # where the ConfigMap is mounted
HOSTFILE = "/etc/mpi/hostfile"  # where the MPI operator mounts it
SHARED_MEMORY = "1Gi"  # gloo and Intel MPI take some MB a rank
TOKEN = "HF_TOKEN"  # the key in the Secret, and the variable
PYTHON = f"{STACK}/bin/python"
PROCESS_ONE = (PYTHON, "-m", "ftcluster_common.process_one")  # of a container
STOP_SECONDS = 120  # for a training that is asked to stop: it saves its state
JOIN_SECONDS = 3600  # pods wait so long for each other: images are pulled, nodes are started

Manifest = dict[str, Any]


@dataclass(frozen=True)
class Pods:
    """A training in pods, one on each host of the plan.

    Attributes:
        name: of all objects, and of the run.
        namespace: "" for that of kubectl.
        claim: the PersistentVolumeClaim that all pods mount.
        node_selector: labels of the nodes.
        token_secret: the Secret with a token for the Hugging Face Hub, or "".
        min_nodes: with how many pods a PyTorchJob goes on.
        max_restarts: how often it is started again after a failure.
    """

    name: str
    namespace: str
    image: str
    claim: str
    node_selector: Mapping[str, str]
    token_secret: str
    plan: LaunchPlan
    recipe: Recipe
    resources: Resources
    min_nodes: int
    max_restarts: int

    @property
    def run_dir(self) -> str:
        """The run's folder, in all pods."""
        return f"{VOLUME}/runs/{self.name}"

    @property
    def ranks(self) -> int:
        """Ranks of each pod."""
        return self.plan.hosts[0].ranks

    @property
    def nodes(self) -> int:
        """The number of pods with ranks."""
        return len(self.plan.hosts)

    @property
    def job(self) -> dict[str, Any]:
        """The content of job.json."""
        plan = self.plan
        return Job(
            self.name, Path(self.run_dir), Path(VOLUME), self.recipe, plan.precision, plan.ipex,
            nodes=self.nodes, shard_optimizer=plan.shard_optimizer, shared_folder=True,
        ).to_dict()  # fmt: skip


def manifests(kind: str, pods: Pods) -> str:
    """The manifests of one kind, as YAML for kubectl."""
    text = json.dumps(pods.job, indent=2) + "\n"
    job = {
        "#": "what is trained: the recipe with its overrides, which every rank reads",
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": _metadata(pods, f"{pods.name}-job"),
        "data": {"job.json": text},
    }
    make: Mapping[str, Callable[[Pods], Sequence[Manifest]]] = {
        PYTORCH: _pytorch_job, TRAIN: _train_job, MPI: _mpi_job
    }  # fmt: skip
    return dump([job, *make[kind](pods)])


def _metadata(pods: Pods, name: str) -> Manifest:
    namespace = {"namespace": pods.namespace} if pods.namespace else {}
    return {"name": name, **namespace, "labels": _labels(pods)}


def _labels(pods: Pods) -> dict[str, str]:
    return {"app.kubernetes.io/name": "ftcluster", "app.kubernetes.io/instance": pods.name}


def _pytorch_job(pods: Pods) -> list[Manifest]:
    """The training operator's: workers that find each other at the first one."""
    count = pods.nodes
    command = [
        *_torchrun("--local-addr", "$(POD_IP)"),  # a pod's name may not be resolved
        *_rank_command(pods),
    ]
    more: list[Manifest] = [
        {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {
            "#": "else a pod that is replaced and those that were restarted would use different "
            "keys of one store",
            "name": "TORCH_DISABLE_SHARE_RDZV_TCP_STORE",
            "value": "1",
        },
    ]
    spec = {
        "runPolicy": {
            "#": "finished pods and their logs stay until the job is deleted",
            "cleanPodPolicy": "Running",
            "backoffLimit": pods.max_restarts,
        },
        "#1": "ranks of each pod",
        "nprocPerNode": str(pods.ranks),
        "#2": "with fewer pods the ranks are started again, and go on from the newest snapshot",
        "elasticPolicy": {
            "rdzvBackend": "c10d",
            "rdzvConf": [{"key": "join_timeout", "value": str(JOIN_SECONDS)}],
            "minReplicas": pods.min_nodes,
            "maxReplicas": count,
            "maxRestarts": pods.max_restarts,
        },
        "pytorchReplicaSpecs": {
            "Worker": {
                "replicas": count,
                "restartPolicy": "OnFailure",
                # the operator knows the container by this name
                "template": _pod(pods, "pytorch", command, _environment(pods), more),
            }
        },
    }
    metadata = _metadata(pods, pods.name)
    return [
        {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": metadata, "spec": spec}
    ]


def _train_job(pods: Pods) -> list[Manifest]:
    """Trainer's: a runtime of its own, because a TrainJob alone cannot have all that pods need."""
    command = [*_torchrun(), *_rank_command(pods)]
    pod = _pod(pods, "node", command, _environment(pods))
    pod["spec"]["restartPolicy"] = "Never"
    jobs = {
        "name": "node",
        "template": {
            "metadata": {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}},
            "spec": {"backoffLimit": 0, "template": pod},
        },
    }
    runtime = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainingRuntime",
        "metadata": _metadata(pods, pods.name),
        "spec": {
            "mlPolicy": {"numNodes": pods.nodes, "torch": {}},
            "template": {
                "spec": {
                    "#": "a pod that fails ends all; they start again from the newest snapshot",
                    "failurePolicy": {"maxRestarts": pods.max_restarts},
                    "replicatedJobs": [jobs],
                }
            },
        },
    }
    job = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": _metadata(pods, pods.name),
        "spec": {
            "runtimeRef": {
                "apiGroup": "trainer.kubeflow.org",
                "kind": "TrainingRuntime",
                "name": pods.name,
            },
            "trainer": {
                "numNodes": pods.nodes,
                "#": "ranks of each pod",
                "numProcPerNode": pods.ranks,
            },
        },
    }
    return [runtime, job]


def _mpi_job(pods: Pods) -> list[Manifest]:
    """The MPI operator's: workers with an SSH server, and mpirun in a pod beside them."""
    plan = pods.plan
    environment = {**_environment(pods), **MPI_VARIABLES}
    if plan.provider:
        environment[PROVIDER_VARIABLE] = plan.provider
    mpirun = " ".join(
        (
            f"exec mpirun -machinefile {HOSTFILE} -n {plan.world_size}",
            f"-prepend-pattern '{label_pattern(pods.name)}'",
            *_rank_command(pods),
        )
    )
    script = "\n".join(
        (
            "# the names of pods are known a while after they are ready",
            f"hosts=$(cut -d: -f1 {HOSTFILE})",
            'for host in $hosts; do until getent hosts "$host"; do sleep 1; done; done',
            "export MASTER_ADDR=${hosts%%[!0-9A-Za-z.-]*}  # the first one has rank 0",
            mpirun,
            "",
        )
    )
    launcher = _pod(
        pods, "launcher", [*PROCESS_ONE, "/bin/bash", "-euc", script], environment, prepares=False
    )
    [container] = launcher["spec"]["containers"]
    container["#"] = "of mpirun alone: the ranks are in the workers"
    container["resources"] = _equal({"cpu": "1", "memory": "1Gi"})
    server = ["/usr/sbin/sshd", "-D", "-e", "-f", "/opt/ftcluster/sshd_config"]
    worker = _pod(pods, "worker", server, {})
    [container] = worker["spec"]["containers"]
    container["readinessProbe"] = {"tcpSocket": {"port": SSH_PORT}, "periodSeconds": 2}
    spec = {
        "mpiImplementation": "Intel",
        "#1": "ranks of each worker",
        "slotsPerWorker": pods.ranks,
        "#2": "the image's SSH client and server use the key that the operator makes for the job",
        "sshAuthMountPath": f"{HOME}/.ssh",
        "launcherCreationPolicy": "WaitForWorkersReady",
        "runPolicy": {
            "#": "finished pods and their logs stay until the job is deleted",
            "cleanPodPolicy": "Running",
            "#1": "mpirun is started again, and the ranks go on from the newest snapshot",
            "backoffLimit": pods.max_restarts,
        },
        "mpiReplicaSpecs": {
            "Launcher": {"replicas": 1, "restartPolicy": "Never", "template": launcher},
            "Worker": {"replicas": pods.nodes, "restartPolicy": "OnFailure", "template": worker},
        },
    }
    metadata = _metadata(pods, pods.name)
    return [
        {"apiVersion": "kubeflow.org/v2beta1", "kind": "MPIJob", "metadata": metadata, "spec": spec}
    ]


def _torchrun(*options: str) -> list[str]:
    """torchrun, which reads the rest of its arguments from PET_ variables of the operator."""
    return [*PROCESS_ONE, PYTHON, "-m", "torch.distributed.run", "--no-python", *options]


def _rank_command(pods: Pods) -> list[str]:
    """What each rank is: bound to its cores first."""
    return [
        PYTHON, "-m", "ftcluster_train.host.bind",
        PYTHON, "-m", "ftcluster_train.engine.rank", pods.run_dir,
    ]  # fmt: skip


def _environment(pods: Pods) -> dict[str, str]:
    """Variables of the ranks."""
    plan = pods.plan
    hosts = [launch_host(plan, host) for host in plan.hosts]
    placement = rank_placement(hosts, stack_link(plan))
    [kind] = placement["kinds"]
    of_host = kind.pop("env")
    kind["env"] = {}  # they are in the manifest itself, where one sees them
    return {
        RUN_VARIABLE: pods.name,
        BACKEND_VARIABLE: plan.backend,
        PLACEMENT_VARIABLE: json.dumps(placement, separators=(",", ":")),
        "OMP_NUM_THREADS": str(plan.hosts[0].threads_per_rank),
        **of_host,
        **_caches(),
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "THP_MEM_ALLOC_ENABLE": "1",
    }


COMMENTS = {
    PLACEMENT_VARIABLE: "CPUs, threads and NUMA nodes of each rank, from `ftcluster plan`",
    "OMP_NUM_THREADS": "bind sets it for each rank, from the line above and the CPUs that it gets",
    "LD_PRELOAD": "a faster allocator; see `ftcluster plan`",
    "THP_MEM_ALLOC_ENABLE": "huge pages for large tensors",
    "TCMALLOC_RELEASE_RATE": "memory that a step frees is kept for the next one",
    "HF_HOME": "models and data sets are downloaded once, to the volume",
    "HF_HUB_OFFLINE": "the container `prepare` has downloaded all, so ranks need no token",
}


def _caches() -> dict[str, str]:
    return {"HF_HOME": f"{VOLUME}/cache/huggingface"}


def _listed(environment: Mapping[str, str]) -> list[Manifest]:
    """Variables as Kubernetes has them."""
    return [
        {**({"#": COMMENTS[name]} if name in COMMENTS else {}), "name": name, "value": value}
        for name, value in environment.items()
    ]


def _equal(amounts: Mapping[str, str]) -> Manifest:
    """Requests equal to the limits: the pod is of the class Guaranteed."""
    return {"requests": dict(amounts), "limits": dict(amounts)}


def _pod(
    pods: Pods,
    container: str,
    command: Sequence[str],
    environment: Mapping[str, str],
    more: Sequence[Manifest] = (),
    prepares: bool = True,
) -> Manifest:
    """The template of a pod.

    Args:
        container: the name of its container with ranks.
        more: variables that are no plain values.
        prepares: whether model and data are prepared before.
    """
    amounts = {"cpu": str(pods.resources.cpus), "memory": f"{pods.resources.memory_gib}Gi"}
    common = {
        "resources": _equal(amounts),
        "securityContext": {
            "allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}
        },
        "volumeMounts": [
            {"name": "ftcluster", "mountPath": VOLUME},
            {"name": "job", "mountPath": JOB_FOLDER, "readOnly": True},
            {"name": "shared-memory", "mountPath": "/dev/shm"},
        ],
    }  # fmt: skip
    env = [*_listed(environment), *more]
    main = {
        "name": container,
        "image": pods.image,
        "command": list(command),
        **({"env": env} if env else {}),
        "#": "a core and a tenth of the memory of each node are left for its system",
        **common,
    }
    init = {"initContainers": [_prepare(pods, common)]} if prepares else {}
    selector = {"nodeSelector": dict(pods.node_selector)} if pods.node_selector else {}
    spec = {
        **selector,
        "terminationGracePeriodSeconds": STOP_SECONDS,
        "#1": "the account of the node image",
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": ACCOUNT,
            "runAsGroup": ACCOUNT,
            "fsGroup": ACCOUNT,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        **init,
        "containers": [main],
        "volumes": [
            {
                "#": "ReadWriteMany: all pods read and write the same files",
                "name": "ftcluster",
                "persistentVolumeClaim": {"claimName": pods.claim},
            },
            {"name": "job", "configMap": {"name": f"{pods.name}-job"}},
            {
                "#": "for the ranks of the pod among each other; the default has 64 MB",
                "name": "shared-memory",
                "emptyDir": {"medium": "Memory", "sizeLimit": SHARED_MEMORY},
            },
        ],
    }
    labels = {
        **_labels(pods),
        "#": "a sidecar would keep the ranks from each other, and the pod from ending",
        "sidecar.istio.io/inject": "false",
    }
    return {"metadata": {"labels": labels}, "spec": spec}


def _prepare(pods: Pods, common: Manifest) -> Manifest:
    """The container that downloads model and data and tokenizes them; the others find that done."""
    token = {"secretKeyRef": {"name": pods.token_secret, "key": TOKEN}}
    env = [
        *_listed(_caches()),
        *([{"name": TOKEN, "valueFrom": token}] if pods.token_secret else []),
    ]
    return {
        "#": "downloads model and data and tokenizes them, unless another pod has",
        "name": "prepare",
        "image": pods.image,
        "command": [
            *PROCESS_ONE, PYTHON, "-m", "ftcluster_train.engine.prepare", pods.run_dir,
            "--job", f"{JOB_FOLDER}/job.json",
        ],
        "env": env,
        **common,
    }  # fmt: skip
