"""Export a training run as Kubernetes manifests for Kubeflow. Nothing is started."""

import re
from dataclasses import dataclass, replace
from pathlib import Path

from ftcluster.cluster.chosen_hosts import with_hosts
from ftcluster.cluster.facts import ClusterFacts
from ftcluster.cluster.saved import Cluster
from ftcluster.errors import FtclusterError, InputError, PlanError, UsageError
from ftcluster.export.kubernetes import PYTORCH, TRAIN, Pods, claim, copy_pod, manifests
from ftcluster.export.node_image import files_of_image, why_no_image
from ftcluster.export.pod_template import (
    DNS_LABEL,
    EMPTY,
    LABEL_KEY,
    LABEL_PART,
    PodTemplate,
    read_pod_template,
)
from ftcluster.export.pods import as_pod, resources, uneven
from ftcluster.launch.training_run import TrainingRun
from ftcluster.operations.plan.facts_file import facts_of
from ftcluster.operations.train.prepare import RecipeRequest, headline_of
from ftcluster.operations.train.recipe_words import names_no_recipe, split_words
from ftcluster.paths import SHARED_FILE, write_atomically
from ftcluster.planning.backends import stack_of
from ftcluster.planning.plan import first_hosts
from ftcluster.stacks.catalog import Stack, load_stacks
from ftcluster.text.comments import comments
from ftcluster_common.given_files import GivenFileError, read_given
from ftcluster_common.protocol.launch import GLOO

KINDS = (PYTORCH, TRAIN)
CLAIM = "ftcluster"
IMAGE = re.compile(r"[A-Za-z0-9\[][\w./:@\[\]+-]{0,254}", re.ASCII)  # [] encloses IPv6
LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")  # RFC 1035
DNS_NAME = re.compile(rf"(?=.{{1,253}}$){DNS_LABEL}(\.{DNS_LABEL})*")
DNS_RULE = "parts of at most 63 characters of a-z, 0-9 and -, separated by dots"
NAMES = {  # pattern and description of a valid name, by option
    "namespace": (re.compile(DNS_LABEL), "at most 63 characters of a-z, 0-9 and -"),
    "claim": (DNS_NAME, DNS_RULE),
    "token_secret": (DNS_NAME, DNS_RULE),
}
LONGEST_NAME = 40  # a pod's name has at most 63 characters, with a suffix such as -node-0-99
LABEL_RULE = (
    "where KEY and VALUE each have at most 63 letters, digits, dots, dashes and underscores, and "
    "begin with a letter or digit"
)
SELECTOR = re.compile(rf"{LABEL_KEY}=({LABEL_PART})?", re.ASCII)


@dataclass(frozen=True)
class KubernetesRequest(RecipeRequest):
    """A training run to export, and the settings of its Kubernetes job.

    Attributes:
        facts: file that describes the nodes, as for `plan`; None for the cluster's hosts.
        kind: kind of the job, from KINDS.
        image: the node image, with its tag.
        name: name of the job and its run; "" for the recipe's name.
        namespace: namespace of all objects; "" for kubectl's current namespace.
        claim: name of the PersistentVolumeClaim for models, data and runs; all pods mount it.
        node_selector: labels of the nodes, as KEY=VALUE.
        token_secret: name of a Secret whose key HF_TOKEN contains a token for the Hugging Face Hub;
            "" for none.
        pod_template: YAML file with further fields of the pods; "" for none.
        min_nodes: minimum number of pods with which the training continues after losing pods. With
            0, the training waits for replacements.
        max_restarts: number of restarts after failures.
    """

    facts: str | None = None
    kind: str = PYTORCH
    image: str = ""
    name: str = ""
    namespace: str = ""
    claim: str = CLAIM
    node_selector: tuple[str, ...] = ()
    token_secret: str = ""
    pod_template: str = ""
    min_nodes: int = 0
    max_restarts: int = 3

    def __post_init__(self) -> None:
        """Check that one recipe is named; `export_k8s` reports all other problems together.

        Raises:
            UsageError: several recipes are named.
        """
        split_words(self.words)

    @property
    def job_name(self) -> str:
        """The name of the job."""
        recipe = split_words(self.words)[0]
        if self.task and names_no_recipe(self.words):
            recipe = self.task  # the task's file defines the recipe
        return self.name or default_name(recipe)


@dataclass(frozen=True)
class Manifests:
    """Manifests for Kubernetes, and the files that they need.

    Attributes:
        kind: kind of the job, from KINDS.
        text: the manifests of the training, as YAML.
        claim: manifest of the claim for the volume.
        copy_pod: manifest of a pod for copying files to and from the volume.
        stack: the stack of the node image.
        folders: local files and folders to copy, and their paths on the volume.
    """

    kind: str
    text: str
    claim: str
    copy_pod: str
    stack: Stack
    folders: tuple[tuple[str, str], ...]

    def write(self, folder: Path) -> list[Path]:
        """Write the manifests and the files of the node image; return their paths.

        Raises:
            FtclusterError: ftcluster runs from a source checkout, which has no package to install
                in the image.
        """
        files = {
            f"{self.kind}.yaml": self.text.encode(),
            "claim.yaml": self.claim.encode(),
            "copy.yaml": self.copy_pod.encode(),
            **files_of_image(self.stack),
        }
        for path, content in files.items():
            write_atomically(folder / path, content, SHARED_FILE)
        return [folder / path for path in files]


def export_k8s(request: KubernetesRequest) -> Manifests:
    """Plan a training for pods on the requested nodes, and return its manifests.

    Raises:
        UsageError: the request is not valid; lists all problems.
        FtclusterError: the training cannot be planned or exported.
    """
    problems = _wrong(request)
    template = EMPTY
    try:
        template = _template(request)
    except FtclusterError as error:
        problems.append(f"--pod-template: {error}")
    try:
        cluster = with_hosts(facts_of(request.facts), request.hosts)
        stack, run = _planned(request, cluster)
        pods = _pods(request, cluster, run, template)
    except FtclusterError as error:
        if not problems:
            raise
        problems.append(str(error))
    if problems:
        text = "\n".join(problems)
        if len(problems) > 1:
            text = f"{len(problems)} problems\n{text}".replace("\n", "\n  ")
        raise UsageError(text)
    text = _comment(request.kind, run) + manifests(request.kind, pods)
    return Manifests(request.kind, text, claim(pods), copy_pod(pods), stack, run.folders)


def default_name(recipe: str) -> str:
    """Return a name for Kubernetes made of a recipe's name or file.

    >>> default_name("recipes/My_recipe.yml"), default_name("gpt2-shakespeare")
    ('my-recipe', 'gpt2-shakespeare')
    """
    return re.sub("[^a-z0-9]+", "-", Path(recipe).stem.lower()).strip("-")


def _template(request: KubernetesRequest) -> PodTemplate:
    """Return the fields of the user's pod template.

    Raises:
        FtclusterError: the file cannot be read, or a field is not valid.
    """
    if not request.pod_template:
        return EMPTY
    try:
        return read_pod_template(read_given(Path(request.pod_template)), request.pod_template)
    except GivenFileError as error:
        raise InputError(str(error)) from error


def _wrong(request: KubernetesRequest) -> list[str]:
    """Return the problems of the request itself, one sentence per problem."""
    name = request.job_name
    problems = []
    if not request.image:
        problems.append("--image is missing: pass a node image, such as registry/ftcluster-node:1")
    elif not IMAGE.fullmatch(request.image):
        problems.append(
            f"--image: {request.image!r} is not an image name, which has at most 255 letters, "
            "digits and ./:@_-"
        )
    if not LABEL.fullmatch(name) or len(name) > LONGEST_NAME:
        problems.append(
            f"--name: {name!r} must consist of at most {LONGEST_NAME} characters a-z, 0-9 and -, "
            "and begin with a letter"
        )
    for option, (form, rule) in NAMES.items():
        value = getattr(request, option)
        if (value or option == "claim") and not form.fullmatch(value):
            flag = f"--{option.replace('_', '-')}"
            problems.append(f"{flag}: {value!r} is not a valid Kubernetes name: {rule}")
    for text in request.node_selector:
        if not SELECTOR.fullmatch(text):
            problems.append(f"--node-selector: {text!r} is not KEY=VALUE, {LABEL_RULE}")
    keys = [text.partition("=")[0] for text in request.node_selector]
    problems += [
        f"--node-selector: {key} has several values" for key in dict.fromkeys(keys)
        if keys.count(key) > 1
    ]  # fmt: skip
    if request.spares:
        problems.append("--spares: remove it, because Kubernetes itself replaces lost pods")
    if request.min_nodes and request.kind != PYTORCH:
        problems.append(
            f"--min-nodes: {request.kind} has no elastic policy; use the kind {PYTORCH}"
        )
    return problems


def _planned(request: KubernetesRequest, cluster: Cluster) -> tuple[Stack, TrainingRun]:
    """Return the stack of the node image, and the training with a plan for pods.

    Raises:
        FtclusterError: the training cannot be planned for pods, no node image has the stack, the
            recipe sets a backend other than gloo, or the pods would not be equal.
    """
    stack = stack_of(cluster.facts, load_stacks())
    if why := why_no_image(stack):
        raise PlanError(why, "set the hosts up with the stack native, and export their facts")
    pods = replace(cluster, facts=ClusterFacts(tuple(map(as_pod, cluster.facts.hosts))))

    def prepared(*more: str, nodes: int | None = request.nodes) -> TrainingRun:
        return replace(request, chosen=more, nodes=nodes, spares=0).prepared(pods)

    run, more = prepared(), list[str]()
    requested = run.recipe.training.ddp_backend
    if requested not in ("auto", GLOO):
        raise PlanError(
            f"training.ddp_backend={requested} is not possible, because torchrun's ranks in pods "
            f"use {GLOO}",
            "remove training.ddp_backend",
        )
    if run.plan.backend != GLOO:
        more = [f"training.ddp_backend={GLOO}"]
        run = prepared(*more)
    if differ := uneven(run.plan):
        raise PlanError(
            f"{differ} would have different cores or ranks than {run.plan.hosts[0].name}, but the "
            "pods of a training run must be equal",
            "choose nodes of one kind, or another --ranks-per-host",
        )
    if 0 < request.min_nodes < len(run.plan.hosts):
        prepared(*more, nodes=request.min_nodes)  # checks that the plan also fits min_nodes
    return stack, run


def _pods(
    request: KubernetesRequest, cluster: Cluster, prepared: TrainingRun, template: PodTemplate
) -> Pods:
    """Return the pods of the manifests.

    Raises:
        PlanError: --min-nodes is more than the number of nodes.
    """
    count = len(prepared.plan.hosts)
    if request.min_nodes > count:
        raise PlanError(f"--min-nodes must be at most {count} pods, got {request.min_nodes}")
    return Pods(
        name=request.job_name,
        namespace=request.namespace,
        image=request.image,
        claim=request.claim,
        node_selector={
            **template.node_selector,
            **dict(text.partition("=")[::2] for text in request.node_selector),
        },
        token_secret=request.token_secret,
        plan=prepared.plan,
        recipe=prepared.recipe,
        resources=resources(first_hosts(cluster.facts, count)),
        min_nodes=request.min_nodes or count,
        max_restarts=request.max_restarts,
        code=prepared.code,
        template=template,
    )


def _comment(kind: str, run: TrainingRun) -> str:
    """Return the comment at the top of the manifests."""
    lines = [
        f"ftcluster export k8s: {kind}. ftcluster's docs/kubernetes.md explains how to start it",
        *headline_of(run),
        *(
            f"before you start it, copy {source} to {path} on the volume"
            for source, path in run.folders
        ),
    ]
    return "".join(f"{line}\n" for line in comments(lines))
