"""`ftcluster export k8s [RECIPE]`: writes manifests with which Kubeflow trains a recipe."""

import argparse
import sys
from pathlib import Path
from typing import Any

from ftcluster.cli.arguments import at_least
from ftcluster.cli.help import example_lines
from ftcluster.cli.recipe import add_training, recipe_of
from ftcluster.errors import UsageError
from ftcluster.operations.export.export_k8s import CLAIM, KINDS, KubernetesRequest, export_k8s
from ftcluster.operations.plan.recipes import known_recipes
from ftcluster.text.terminal import print_lines

PYTORCH = KINDS[0]


def add_parser(kinds: Any) -> None:
    """Add the command to the parser of `export`."""
    parser = kinds.add_parser(
        "k8s",
        help="write manifests for Kubeflow",
        description="Writes manifests with which Kubeflow trains a recipe, one pod on each node. "
        "`ftcluster plan` decides the ranks and threads for the nodes that --facts describes.",
        usage="ftcluster export k8s [RECIPE] [key=value ...] --image IMAGE [options]",
    )
    add_training(parser)
    parser.add_argument("--facts", metavar="FILE", help="facts of the nodes, as in plan")
    group = parser.add_argument_group("Kubernetes")
    group.add_argument(
        "--kind",
        choices=KINDS,
        default=PYTORCH,
        help=f"pytorchjob: for the training operator; trainjob: for Trainer 2 (default: {PYTORCH})",
    )
    group.add_argument("--image", default="", metavar="IMAGE", help="node image with its tag")
    group.add_argument(
        "--name", default="", metavar="NAME", help="name of job and run (default: recipe's name)"
    )
    group.add_argument(
        "--namespace",
        default="",
        metavar="NAME",
        help="namespace of all objects (default: kubectl's current namespace)",
    )
    group.add_argument(
        "--claim",
        default=CLAIM,
        metavar="NAME",
        help="PersistentVolumeClaim for models, data and runs, which all pods mount "
        f"(default: {CLAIM})",
    )
    group.add_argument(
        "--node-selector",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="label that nodes must have; may be repeated",
    )
    group.add_argument(
        "--token-secret",
        default="",
        metavar="NAME",
        help="Secret whose key HF_TOKEN is your token for the Hugging Face Hub",
    )
    group.add_argument(
        "--pod-template",
        default="",
        metavar="FILE",
        help="YAML with fields that your cluster requires in pods, such as tolerations and "
        "imagePullSecrets",
    )
    group.add_argument(
        "--min-nodes",
        type=at_least(1),
        default=0,
        metavar="N",
        help="with pytorchjob: continue without lost pods if at least N pods remain (default: wait "
        "for all pods)",
    )
    group.add_argument(
        "--max-restarts",
        type=at_least(0),
        default=3,
        metavar="N",
        help="restart at most N times after a failure (default: 3)",
    )
    group.add_argument(
        "-o",
        "--output",
        metavar="DIR",
        help="write all manifests and the files of the node image into a folder",
    )
    parser.set_defaults(run=run, parser=parser)
    parser.more = example_lines("export k8s", known_recipes())


def run(options: argparse.Namespace) -> int:
    """Run the command and return the exit code."""
    names = (
        "facts", "kind", "image", "name", "namespace", "claim", "token_secret",
        "pod_template", "min_nodes", "max_restarts",
    )  # fmt: skip
    more = {name: getattr(options, name) for name in names}
    try:
        request = KubernetesRequest(
            **recipe_of(options), **more, node_selector=tuple(options.node_selector)
        )
        exported = export_k8s(request)
    except UsageError as error:
        raise UsageError(error.message, error.hint or options.parser.usage_line()) from None
    if options.output:
        for path in exported.write(Path(options.output)):
            print_lines([str(path)])
    else:
        print(exported.text, end="")
    copies = [
        f"before the launch, copy {source} to {path} on the volume"
        for source, path in exported.folders
    ]
    print_lines(copies, sys.stderr)
    return 0
