"""`ftcluster export k8s [RECIPE]`: the training as manifests for Kubeflow."""

import argparse
import re
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ftcluster.cli.arguments import at_least
from ftcluster.cli.help import example_lines
from ftcluster.cli.plan import facts_of
from ftcluster.cli.recipe_words import split_words
from ftcluster.cli.train import add_training, headline_of, prepare_run, recipe_words
from ftcluster.cluster.saved import Cluster
from ftcluster.errors import FtclusterError, PlanError, UsageError
from ftcluster.export.kubernetes import PYTORCH, TRAIN, Pods, manifests
from ftcluster.export.node_image import files_of_image, why_no_image
from ftcluster.export.pods import as_pods, resources, uneven
from ftcluster.launch.training_run import TrainingRun
from ftcluster.paths import write_atomically
from ftcluster.planning.backends import stack_of
from ftcluster.planning.plan import first_hosts
from ftcluster.recipe.recipe import known_recipes
from ftcluster.stacks.catalog import Stack, load_stacks
from ftcluster_common.launch import GLOO

READABLE = 0o644
CLAIM = "ftcluster"
LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")  # RFC 1035
DNS_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")  # RFC 1123
LONGEST_NAME = 40  # operators add to it: -node-0-99, -worker-99; a pod's name has 63 letters
SELECTOR = re.compile(r"([a-z0-9.-]+/)?[\w.-]+=[\w.-]*", re.ASCII)


def add_parser(kinds: Any) -> None:
    """Add the command to the parser of `export`."""
    parser = kinds.add_parser(
        "k8s",
        help="manifests for Kubeflow",
        description="Writes manifests for Kubeflow that train the same with a pod on each node. "
        "The numbers are those of `ftcluster plan` for nodes as --facts describes them.",
        usage="ftcluster export k8s [RECIPE] [key=value ...] --image IMAGE [options]",
    )
    add_training(parser)
    parser.add_argument("--facts", metavar="FILE", help="the nodes, as in plan")
    group = parser.add_argument_group("Kubernetes")
    group.add_argument(
        "--kind",
        choices=(PYTORCH, TRAIN),
        default=PYTORCH,
        help=f"pytorchjob: for the training operator; trainjob: for Trainer 2 (default: {PYTORCH})",
    )
    group.add_argument("--image", default="", metavar="IMAGE", help="the node image, with its tag")
    group.add_argument(
        "--name", default="", metavar="NAME", help="of the job and its run (default: the recipe's)"
    )
    group.add_argument(
        "--namespace", default="", metavar="NAME", help="of all objects (default: kubectl's)"
    )
    group.add_argument(
        "--claim",
        default=CLAIM,
        metavar="NAME",
        help="the PersistentVolumeClaim for models, data and runs, which all pods mount "
        f"(default: {CLAIM})",
    )
    group.add_argument(
        "--node-selector",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a label that the nodes have; may be repeated",
    )
    group.add_argument(
        "--token-secret",
        default="",
        metavar="NAME",
        help="a Secret whose key HF_TOKEN is your token for the Hugging Face Hub",
    )
    group.add_argument(
        "--min-nodes",
        type=at_least(1),
        default=0,
        metavar="N",
        help="with pytorchjob: go on without lost pods while N are left (default: wait for all)",
    )
    group.add_argument(
        "--max-restarts",
        type=at_least(0),
        default=3,
        metavar="N",
        help="start again at most N times after a failure (default: 3)",
    )
    group.add_argument(
        "-o",
        "--output",
        metavar="DIR",
        help="write the manifests and the files of the node image into a folder",
    )
    parser.set_defaults(run=run, parser=parser)
    parser.more = example_lines("export k8s", known_recipes())


def run(options: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    name = options.name or default_name(split_words(options.words)[0])
    problems = wrong_options(options, name)
    try:
        cluster = facts_of(options.facts)
        stack, prepared = planned(options, cluster)
        pods = pods_of(options, name, cluster, prepared)
    except FtclusterError as error:
        if not problems:
            raise
        problems.append(str(error))
    if problems:
        text = "\n".join(problems)
        if len(problems) > 1:
            text = f"{len(problems)} problems\n{text}".replace("\n", "\n  ")
        raise UsageError(text, options.parser.usage_line())
    text = as_comment(options, prepared) + manifests(options.kind, pods)
    if options.output:
        write(
            Path(options.output), {f"{options.kind}.yaml": text.encode(), **files_of_image(stack)}
        )
    else:
        print(text, end="")
    for source, path in prepared.folders:
        print(f"copy it to the volume first: {source} to {path}", file=sys.stderr)
    return 0


def default_name(recipe: str) -> str:
    """A name for Kubernetes from that of a recipe or its file.

    >>> default_name("recipes/My_recipe.yml"), default_name("gpt2-shakespeare")
    ('my-recipe', 'gpt2-shakespeare')
    """
    return re.sub("[^a-z0-9]+", "-", Path(recipe).stem.lower()).strip("-")


def wrong_options(options: argparse.Namespace, name: str) -> list[str]:
    """What is wrong with options of this command alone, a sentence each."""
    problems = []
    if not options.image:
        problems.append("--image is missing: the node image, such as registry/ftcluster-node:1")
    elif re.search(r"\s", options.image):
        problems.append(f"--image: {options.image!r} is not the name of an image")
    if not LABEL.fullmatch(name) or len(name) > LONGEST_NAME:
        problems.append(
            f"--name: {name!r} is not at most {LONGEST_NAME} of a-z, 0-9 and -, from a letter on"
        )
    for option in ("namespace", "claim", "token_secret"):
        value = getattr(options, option)
        if value and not DNS_NAME.fullmatch(value):
            flag = f"--{option.replace('_', '-')}"
            problems.append(f"{flag}: {value!r} is not a name of Kubernetes: a-z, 0-9 and -")
    for text in options.node_selector:
        if not SELECTOR.fullmatch(text):
            problems.append(f"--node-selector: {text!r} is not KEY=VALUE")
    if options.spares:
        problems.append("--spares: Kubernetes itself starts another pod in place of a lost one")
    if options.min_nodes and options.kind != PYTORCH:
        problems.append(f"--min-nodes: {options.kind} has no elastic policy, {PYTORCH} has")
    return problems


def planned(options: argparse.Namespace, cluster: Cluster) -> tuple[Stack, TrainingRun]:
    """The stack of the node image, and the training with a plan for pods.

    Raises:
        FtclusterError: as `ftcluster plan`; there is no node image with the stack; the recipe asks
            for another backend than gloo, or does not fit what is left of the nodes.
    """
    stack = stack_of(cluster.facts, load_stacks())
    if why := why_no_image(stack):
        raise PlanError(why, "set the hosts up with the stack native, and export their facts")
    words = recipe_words(options)
    pods = replace(cluster, facts=as_pods(cluster.facts))

    def prepared(*more: str, nodes: int | None = options.nodes) -> TrainingRun:
        shape = (nodes, 0, options.ranks_per_host)
        return prepare_run([*words, *more], pods, options.data, options.model, *shape)

    found, more = prepared(), list[str]()
    asked = found.recipe.training.ddp_backend
    if asked not in ("auto", GLOO):
        raise PlanError(
            f"training.ddp_backend={asked}, but torchrun's ranks in pods have {GLOO}",
            "leave it out",
        )
    if found.plan.backend != GLOO:
        more = [f"training.ddp_backend={GLOO}"]
        found = prepared(*more)
    if differ := uneven(found.plan):
        raise PlanError(
            f"{differ} would have other cores or ranks than {found.plan.hosts[0].name}, but the "
            "pods of a training are all alike",
            "export it for nodes of one kind, or with another --ranks-per-host",
        )
    if 0 < options.min_nodes < len(found.plan.hosts):
        prepared(*more, nodes=options.min_nodes)  # fits those as well
    return stack, found


def pods_of(
    options: argparse.Namespace, name: str, cluster: Cluster, prepared: TrainingRun
) -> Pods:
    """What is exported.

    Raises:
        PlanError: --min-nodes is more than there are nodes.
    """
    count = len(prepared.plan.hosts)
    if options.min_nodes > count:
        raise PlanError(f"--min-nodes {options.min_nodes}, but the training has {count}")
    return Pods(
        name=name,
        namespace=options.namespace,
        image=options.image,
        claim=options.claim,
        node_selector=dict(text.split("=", 1) for text in options.node_selector),
        token_secret=options.token_secret,
        plan=prepared.plan,
        recipe=prepared.recipe,
        resources=resources(first_hosts(cluster.facts, count)),
        min_nodes=options.min_nodes or count,
        max_restarts=options.max_restarts,
    )


def as_comment(options: argparse.Namespace, run: TrainingRun) -> str:
    """What the manifests are, as the first lines of the file."""
    lines = [
        f"ftcluster export k8s: {options.kind}. How to run it: docs/kubernetes.md of ftcluster",
        *headline_of(run),
        *(f"copied to the volume before: {source} to {path}" for source, path in run.folders),
    ]
    return "".join(f"# {line}\n" for line in lines)


def write(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write files below a folder, and print their names."""
    for path, content in files.items():
        write_atomically(folder / path, content, READABLE)
        print(folder / path)
