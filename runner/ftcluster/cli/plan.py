"""`ftcluster plan [RECIPE]`: the ranks of a training, their resources and the reasons."""

import argparse
import json
from collections.abc import Iterator
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from ftcluster.cli.arguments import add_commands, add_output
from ftcluster.cli.train import (
    add_training,
    prepare_run,
    recipe_words,
    show_plan,
    split_words,
)
from ftcluster.cluster.facts import ClusterFacts, HostFacts
from ftcluster.cluster.saved import Cluster, recall
from ftcluster.errors import InputError, raise_together
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
        help="plan for the hosts in FILE, the output of `ftcluster plan --json`, instead of the "
        "cluster that was set up last",
    )
    add_commands(parser)
    add_output(parser, verbose="")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    split_words(options.words)  # wrong usage first
    cluster = facts_of(options.facts)
    shape = (options.nodes, options.spares, options.ranks_per_host)
    prepared = prepare_run(recipe_words(options), cluster, options.data, options.model, *shape)
    show_plan(prepared, options)
    return 0


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
    except (OSError, UnicodeDecodeError, ValueError) as error:
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
    except (AttributeError, TypeError, ValueError) as error:
        yield f"{host['name']}: {error}"
