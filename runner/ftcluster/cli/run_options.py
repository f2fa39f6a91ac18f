"""What the commands about runs take alike: which run, and on which cluster."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ftcluster.ansible.options import CONNECTION, add_options, passed_on
from ftcluster.cluster.facts import ClusterFacts
from ftcluster.cluster.saved import Cluster, recall
from ftcluster.errors import UsageError
from ftcluster.launch.place import Place, place_of, recorded_place
from ftcluster.launch.runs import find_run, list_runs
from ftcluster.progress.view import make_view
from ftcluster.provision.stages import run_stages


def add_run_options(parser: argparse.ArgumentParser, words: str, meaning: str) -> None:
    """Add a run's id and the options that say how to reach its cluster.

    Args:
        parser: the command's.
        words: what it is called with, for its usage, such as RUN.
        meaning: help for these.
    """
    parser.add_argument("words", nargs="*", metavar=words, help=meaning)
    parser.add_argument(
        "-i",
        "--inventory",
        action="append",
        default=[],
        metavar="INVENTORY",
        dest="inventories",
        help="a cluster that was set up from another control node; left out, the one that was set "
        "up last from here",
    )
    add_options(parser, ("--extra-vars", *CONNECTION))


def cluster_place(options: argparse.Namespace, reach: Sequence[str]) -> Place:
    """The cluster that is meant.

    Args:
        options: of `add_run_options`.
        reach: arguments of ansible-playbook that the user gave.

    Raises:
        FtclusterError: it does not answer, or none has been set up from here.
    """
    if not options.inventories:
        return _with(place_of(recall()), reach)
    paths = tuple(map(Path, options.inventories))
    found = run_stages("look", paths, reach, make_view(False))
    hosts = tuple(found.facts[name] for name in found.inventory.cluster if name in found.facts)
    return place_of(Cluster(paths, ClusterFacts(hosts), tuple(reach), found.inventory.pattern))


def find(options: argparse.Namespace, passwords: Sequence[str], newest: bool) -> tuple[Place, str]:
    """The run that is meant: where it is, and its id.

    Args:
        options: of `add_run_options`; the first of its words is the run's id, or how it begins.
        passwords: arguments of ansible-playbook with what the user was asked for.
        newest: whether no id stands for the newest run.

    Raises:
        UsageError: there is no id.
        FtclusterError: there is no such run.
    """
    reach = (*passed_on(vars(options)), *passwords)
    name = options.words[0] if options.words else ""
    if not name and not newest:
        raise UsageError("name the run", "list them: ftcluster ps")
    recorded = recorded_place(name) if name and not options.inventories else None
    if recorded:
        return _with(recorded, reach), name
    place = cluster_place(options, reach)
    if name:
        return place, find_run(place, name).run
    runs = list_runs(place)
    if not runs:
        raise UsageError(f"there are no runs on {place.head}", "start one: ftcluster train")
    return place, runs[0].run


def _with(place: Place, reach: Sequence[str]) -> Place:
    given: dict[str, Any] = {**vars(place), "options": (*place.options, *reach)}
    return Place(**given)
