"""What the commands about runs take alike: which run, and on which cluster."""

import argparse
from collections.abc import Sequence
from dataclasses import replace

from ftcluster.ansible.inventory import inventory_path
from ftcluster.ansible.options import (
    CONNECTION,
    add_inventory_option,
    add_options,
    passed_on,
    remembered,
)
from ftcluster.ansible.playbooks import Look
from ftcluster.cluster.facts import ClusterFacts
from ftcluster.cluster.saved import Cluster, recall
from ftcluster.errors import FtclusterError, UsageError
from ftcluster.launch.place import Place, head_lost_hint, place_of
from ftcluster.launch.record import other_heads, recorded_place, recorded_runs
from ftcluster.launch.runs import find_run, list_runs
from ftcluster.progress.view import make_view
from ftcluster.provision.stages import run_stages
from ftcluster_common.run_state import RunState

WITHOUT_ROOT = (
    "there is no root here, so only a cluster of the login user is seen; for one that was set up "
    "with root, log in as a user with root, and give -K if sudo asks for a password"
)


def add_run_options(parser: argparse.ArgumentParser, words: str, meaning: str) -> None:
    """Add a run's id and the options that say how to reach its cluster.

    Args:
        words: what it is called with, for its usage, such as RUN.
        meaning: help for these.
    """
    parser.add_argument("words", nargs="*", metavar=words, help=meaning)
    add_cluster(parser)
    add_options(parser, ("--extra-vars", *CONNECTION))


def add_cluster(parser: argparse.ArgumentParser) -> None:
    """Add the option that names a cluster."""
    add_inventory_option(
        parser,
        "a cluster that was set up from another control node; left out, the one that was set up "
        "last from here",
    )


def reach_of(options: argparse.Namespace, passwords: Sequence[str]) -> tuple[str, ...]:
    """The arguments of ansible-playbook that the user gave, and those with passwords."""
    return (*passed_on(vars(options)), *passwords)


def cluster_of(options: argparse.Namespace, passwords: Sequence[str]) -> Cluster:
    """The cluster that is meant; of one that is named, only the hosts that answer.

    Args:
        options: with those of `add_cluster`.
        passwords: arguments of ansible-playbook with what the user was asked for.

    Raises:
        FtclusterError: no host answers or has a stack in use, or none has been set up from here.
    """
    if not options.inventories:
        return recall()
    paths = tuple(map(inventory_path, options.inventories))
    reach = reach_of(options, passwords)
    found = run_stages(Look(), paths, reach, make_view(False), unreachable=True)
    inventory = found.inventory
    hosts = tuple(found.facts[name] for name in inventory.cluster if name in found.facts)
    if hosts and not found.set_up:
        names = ", ".join(host.name for host in hosts)
        raise FtclusterError(
            f"no cluster is set up in {hosts[0].prefix} on {names}",
            "run ftcluster setup" if hosts[0].rank_user else WITHOUT_ROOT,
        )
    kept = remembered(passed_on(vars(options)))
    cluster = Cluster(inventory.paths, ClusterFacts(hosts), kept, inventory.pattern)
    # a head that does not answer has the record
    return cluster.with_record(found.records.get(inventory.head, ""))


def cluster_place(options: argparse.Namespace, passwords: Sequence[str]) -> Place:
    """Where the runs of the cluster are that is meant; arguments and errors as `cluster_of`."""
    return reached(place_of(cluster_of(options, passwords)), reach_of(options, passwords))


def reached(place: Place, reach: Sequence[str]) -> Place:
    """A place with further arguments of ansible-playbook."""
    return replace(place, options=(*place.options, *reach))


def all_runs(place: Place) -> list[RunState]:
    """The runs of a cluster's head, and of other heads that this control node has started.

    Raises:
        FtclusterError: the first head does not answer.
    """
    runs = {one.run: one for one in list_runs(place)}
    for other in other_heads(place):
        try:
            found = list_runs(replace(other, options=place.options))
        except FtclusterError as error:
            make_view(False).say(error.message)
        else:
            runs |= {one.run: one for one in found if one.hosts}
    return sorted(runs.values(), key=lambda one: one.started, reverse=True)


def one_name(words: Sequence[str]) -> str:
    """The run that a command line names; "" where it names none.

    Raises:
        UsageError: it names several.
    """
    if len(words) > 1:
        raise UsageError(f"one run at a time, not {', '.join(words)}")
    return words[0] if words else ""


def find(options: argparse.Namespace, passwords: Sequence[str], name: str) -> tuple[Place, str]:
    """The run that is meant: where it is, and its id.

    Args:
        options: of `add_run_options`.
        passwords: arguments of ansible-playbook with what the user was asked for.
        name: the run's id, or how it begins; "" for the newest run.

    Raises:
        FtclusterError: there is no such run, or its head does not answer.
    """
    recorded = recorded_runs(name) if name and not options.inventories else []
    run = name if name in recorded else recorded[0] if len(recorded) == 1 else ""
    if run and (known := recorded_place(run)):
        return reached(known, reach_of(options, passwords)), run
    place = cluster_place(options, passwords)
    if name:
        found = find_run(place, name)
    else:
        runs = all_runs(place)
        if not runs:
            raise UsageError(f"there are no runs on {place.head}", "start one: ftcluster train")
        found = runs[0]
        known = recorded_place(found.run)
        place = reached(known, reach_of(options, passwords)) if known else place
    if not found.hosts and found.state != "running":  # only the head of a run has its launch
        known = recorded_place(found.run)
        message = f"run {found.run} was not launched on {place.head}"
        if known and known.head not in place.hosts:
            message = f"{known.head}, the head of run {found.run}, does not answer"
        raise FtclusterError(message, head_lost_hint(found.run))
    return place, found.run
