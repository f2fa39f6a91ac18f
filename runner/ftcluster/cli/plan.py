"""`ftcluster plan [RECIPE]`: the ranks of a training, their resources and the reasons."""

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from ftcluster.cli.arguments import add_commands, add_output, print_result
from ftcluster.cli.recipe_words import split_words
from ftcluster.cli.train import (
    add_training,
    prepare_run,
    recipe_words,
    shape_of,
    show_plan,
)
from ftcluster.cluster.facts import ClusterFacts, HostFacts
from ftcluster.cluster.price import read_price
from ftcluster.cluster.saved import Cluster, recall
from ftcluster.errors import FtclusterError, InputError, UsageError, raise_together
from ftcluster.launch.training_run import TrainingRun
from ftcluster.recipe.recipe import find_recipe
from ftcluster.report.cost import comparison
from ftcluster.report.epoch_time import past_runs
from ftcluster_common.cpu_list import parse_cpus

HINT = "give the output of `ftcluster plan --json`, or cluster.json of another control node"


def add_parser(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "plan",
        help="show the ranks of a training, and why",
        description="Shows what `ftcluster train` would start with the same arguments: the ranks "
        "of each host with their cores, threads and memory, and every decision with its reason. "
        "Starts nothing.",
        usage="ftcluster plan [RECIPE] [key=value ...] [options]",
    )
    add_training(parser)
    parser.add_argument(
        "--facts",
        metavar="FILE",
        action="append",
        help="plan for the hosts in FILE, the output of `ftcluster plan --json`, instead of the "
        "cluster that was set up last; given several times, compare time and cost of an epoch",
    )
    add_commands(parser)
    add_output(parser, verbose="")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    find_recipe(split_words(options.words)[0])  # wrong usage first
    files = options.facts or []
    if len(files) > 1 and options.commands:
        raise UsageError("--commands shows the commands of one plan: give --facts once")
    if len(files) > 1:
        compare(files, options)
        return 0
    show_plan(prepared(options, files[0] if files else None), options)
    return 0


def prepared(options: argparse.Namespace, file: str | None) -> TrainingRun:
    """What would run on the hosts of a file, or of the last setup."""
    shape = (options.nodes, options.spares, options.ranks_per_host)
    return prepare_run(recipe_words(options), facts_of(file), options.data, options.model, *shape)


def compare(files: Sequence[str], options: argparse.Namespace) -> None:
    """Print what an epoch takes and costs on the hosts of each file.

    Raises:
        InputError: one cannot be read, or no plan is possible there; names each.
    """
    runs, problems = [], []
    for file in files:
        try:
            runs.append((file, prepared(options, file)))
        except FtclusterError as error:
            text = str(error)
            problems.append(text if file in text else f"{file}: {text}")
    raise_together(problems, "not all of these clusters can be compared", "")
    recorded = past_runs()
    shapes = [shape_of(run, recorded, file) for file, run in runs]
    recipe = runs[0][1].recipe.name
    result = {
        "state": "compared",
        "recipe": recipe,
        "shapes": [shape.document() for shape in shapes],
    }
    print_result(options, result, "\n".join([f"recipe {recipe}", "", *comparison(shapes)]))


def facts_of(file: str | None) -> Cluster:
    """The cluster of --facts; without it, that of the last setup.

    Raises:
        FtclusterError: there is none, or the file cannot be read or is incomplete.
    """
    return Cluster(inventories=(), facts=read_facts(Path(file).absolute())) if file else recall()


def read_facts(path: Path) -> ClusterFacts:
    """The hosts of a file, which are its `facts` or all of it.

    Raises:
        InputError: it cannot be read, or a host is incomplete; names each with what is missing.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path} cannot be read: {error}", HINT) from error
    hosts = document.get("facts", document) if isinstance(document, dict) else None
    hosts = hosts.get("hosts") if isinstance(hosts, dict) else None
    if not isinstance(hosts, list) or not hosts:
        raise InputError(f"{path} has no hosts", HINT)
    problems = [
        f"host {number}: {problem}"
        for number, host in enumerate(hosts, start=1)
        for problem in _problems(host)
    ]
    raise_together(problems, f"{path} has no valid facts", HINT)
    return ClusterFacts.from_dict({"hosts": hosts})


def _problems(host: Any) -> Iterator[str]:
    """What is missing or wrong in a host of such a file."""
    if not isinstance(host, dict):
        yield f"{host!r} is not a mapping"
        return
    missing = [
        spec.name for spec in fields(HostFacts) if spec.default is MISSING and spec.name not in host
    ]
    if missing:
        yield f"{host.get('name', '?')} has no {', '.join(missing)}"
        return
    try:
        facts = HostFacts.from_dict(host)
        cpus = {cpu for node in facts.numa for cpu in parse_cpus(node.cpus)}
        if not 0 < facts.cores <= len(cpus):
            yield f"{facts.name} has {facts.cores} cores, but its NUMA nodes have {len(cpus)} CPUs"
        price = facts.price_per_hour
    except (AttributeError, TypeError, ValueError) as error:
        yield f"{host['name']}: {error}"
        return
    try:
        if price:
            read_price(price)
    except (AttributeError, ValueError):
        yield f'{facts.name}: {price!r} is no price; write price_per_hour like "4.08 USD"'
