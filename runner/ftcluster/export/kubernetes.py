"""Renders the manifests with which Kubeflow's operators train a recipe, from a template."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from ftcluster.export.pod_template import EMPTY, PodTemplate
from ftcluster.export.pods import STACK, VOLUME, Resources
from ftcluster.launch.mpirun import launch_host, stack_link
from ftcluster.planning.plan import LaunchPlan
from ftcluster.text.printable import is_plain
from ftcluster_common import __version__
from ftcluster_common.protocol.job import Job
from ftcluster_common.protocol.launch import rank_placement
from ftcluster_common.recipe import Recipe
from ftcluster_common.user_code import NO_CODE, UserCode

PYTORCH, TRAIN = "pytorchjob", "trainjob"  # both kinds run torchrun in each pod
JOB, CLAIM, COPY = "kubernetes.yaml.j2", "claim.yaml.j2", "copy.yaml.j2"  # templates in this folder
ACCOUNT = 10001  # user and group of the node image; nodes may use ids below 10000
JOB_FOLDER = "/opt/ftcluster/job"  # mount point of the ConfigMap
TOKEN_FOLDER = "/opt/ftcluster/token"  # mount point of the Secret
STOP_SECONDS = 120  # time for a stopped training run to save its state
KEPT_SECONDS = 7 * 24 * 3600  # how long finished pods and their logs are kept
SCRATCH_GIB = 2  # size of /tmp; logs and temporary files of torch take some megabytes
# `prepare` is one process that streams the data; it needs 0.4 GB for 20,000 rows
PREPARE = Resources(cpus=2, memory_gib=4)


@dataclass(frozen=True)
class Pods:
    """A training run in pods; each host of the plan is a pod.

    Attributes:
        name: name of all objects and of the run.
        namespace: namespace of all objects; "" for kubectl's default.
        claim: PersistentVolumeClaim that all pods mount.
        node_selector: labels of the nodes.
        token_secret: Secret with a token for the Hugging Face Hub, or "".
        min_nodes: minimum number of pods with which a PyTorchJob continues.
        max_restarts: maximum number of restarts after failures.
        code: the user's own files that the pods execute.
        template: further fields of the pods, from the user's file.
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
    code: UserCode = NO_CODE
    template: PodTemplate = EMPTY

    @property
    def version(self) -> str:
        """The version of ftcluster, with only the characters that Kubernetes allows in labels."""
        return __version__.replace("+", "_")

    @property
    def prepare_resources(self) -> Resources:
        """The resources of the container that downloads and tokenizes."""
        whole = self.resources
        return Resources(min(PREPARE.cpus, whole.cpus), min(PREPARE.memory_gib, whole.memory_gib))

    @property
    def run_dir(self) -> str:
        """The run's folder in all pods."""
        return f"{VOLUME}/runs/{self.name}"

    @property
    def ranks(self) -> int:
        """The number of ranks of each pod."""
        return self.plan.hosts[0].ranks

    @property
    def nodes(self) -> int:
        """The number of pods."""
        return len(self.plan.hosts)

    @property
    def job_json(self) -> str:
        """The content of job.json."""
        plan = self.plan
        job = Job(
            self.name, Path(self.run_dir), Path(VOLUME), self.recipe, plan.precision, plan.ipex,
            nodes=self.nodes, shard_optimizer=plan.shard_optimizer, shared_folder=True,
            code=self.code,
        )  # fmt: skip
        return json.dumps(job.to_dict(), indent=2)

    @property
    def host_variables(self) -> dict[str, str]:
        """The environment variables that the plan sets for all ranks of a host."""
        variables: dict[str, str] = self._placement["kinds"][0]["env"]
        return variables

    @property
    def placement(self) -> str:
        """The placement of all ranks as JSON, without `host_variables`, which the manifest sets."""
        [kind] = self._placement["kinds"]
        placement = {**self._placement, "kinds": [{**kind, "env": {}}]}
        return json.dumps(placement, separators=(",", ":"))

    @cached_property
    def _placement(self) -> dict[str, Any]:
        hosts = [launch_host(self.plan, host) for host in self.plan.hosts]
        return rank_placement(hosts, stack_link(self.plan))


def manifests(kind: str, pods: Pods) -> str:
    """Return the manifests of a training run, for a job of this kind, as YAML with comments."""
    return _rendered(JOB, pods, kind=kind, python=f"{STACK}/bin/python")


def claim(pods: Pods) -> str:
    """Return the manifest of the PersistentVolumeClaim that all pods mount."""
    return _rendered(CLAIM, pods)


def copy_pod(pods: Pods) -> str:
    """Return the manifest of a pod for copying files to and from the volume."""
    return _rendered(COPY, pods)


def _rendered(template: str, pods: Pods, **values: str) -> str:
    from jinja2 import Environment, StrictUndefined  # imported here because the import is slow

    environment = Environment(
        undefined=StrictUndefined, trim_blocks=True, keep_trailing_newline=True
    )
    environment.filters |= {"quoted": quoted, "as_json": json.dumps}
    text = Path(__file__).with_name(template).read_text(encoding="utf-8")
    return environment.from_string(text).render(
        pods=pods,
        volume=VOLUME,
        job_folder=JOB_FOLDER,
        token_folder=TOKEN_FOLDER,
        stop_seconds=STOP_SECONDS,
        kept_seconds=KEPT_SECONDS,
        scratch_gib=SCRATCH_GIB,
        account=ACCOUNT,
        **values,
    )


def quoted(text: str) -> str:
    r"""Return a string as a YAML scalar on a single line that is always read as a string.

    >>> print(quoted("it's 1"), quoted("a\n---\n"), quoted("\x85"))
    'it''s 1' "a\n---\n" "\N"
    """
    style = "'" if is_plain(text) else '"'  # in single quotes, YAML would wrap the text
    scalar: str = yaml.safe_dump(text, default_style=style, width=float("inf"))
    return scalar.removesuffix("\n")
