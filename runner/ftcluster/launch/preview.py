"""A plan as text and as JSON. Pure functions only."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from ftcluster.cluster.facts import ClusterFacts
from ftcluster.launch.mpirun import as_shell
from ftcluster.planning.plan import HostPlan, LaunchPlan
from ftcluster.text.host_names import short_names
from ftcluster.text.table import aligned
from ftcluster_common.launch import Launch

HEAD = ("host", "rank", "CPUs", "threads", "memory", "samples", "allocator", "interface")


def table(plan: LaunchPlan) -> list[str]:
    """Who runs where: a line for each rank of a host; equal hosts share their lines."""
    alike: dict[tuple[Any, ...], list[HostPlan]] = {}
    for host in plan.hosts:
        alike.setdefault((host.placement, host.preload, host.interface), []).append(host)
    return aligned([HEAD, *(row for hosts in alike.values() for row in _rows(hosts))])


def _rows(hosts: Sequence[HostPlan]) -> Iterator[tuple[str, ...]]:
    first = hosts[0]
    name = short_names([host.name for host in hosts])
    preload = " ".join(PurePosixPath(path).name for path in first.preload) or "libc"
    for index, rank in enumerate(first.placement):
        yield (
            "" if index else name,
            str(index),
            f"{rank.cpus} oneCCL {rank.workers}" if rank.workers else rank.cpus,
            str(rank.threads),
            f"node {','.join(map(str, rank.memory))}" if rank.memory else "any",
            str(rank.samples or "?"),
            "" if index else preload,
            "" if index else first.interface or "?",
        )


def reasons(plan: LaunchPlan) -> list[str]:
    """A line for each decision with its reason."""
    return [f"{one.subject}: {one.value} ({one.why})" for one in plan.decisions]


def as_text(
    plan: LaunchPlan,
    launch: Launch,
    job: Mapping[str, Any] | None = None,
    folders: Sequence[tuple[str, str]] = (),
) -> str:
    """Everything, to be pasted into a shell; all but the commands are comments.

    Args:
        folders: folders of the control node and where they are copied to on the hosts.
    """
    copies = [f"copy {source} to {path} on every host before" for source, path in folders]
    comments = [*table(plan), "", *reasons(plan), *([""] if copies else []), *copies]
    lines = [f"# {line}".rstrip() for line in comments]
    return "\n".join([*lines, "", as_shell(launch, plan, job)])


def host_document(host: HostPlan) -> dict[str, Any]:
    """A host for `--json`."""
    return {
        "name": host.name,
        "address": host.address,
        "interface": host.interface,
        "preload": list(host.preload),
        "ranks": [vars(rank) for rank in host.placement],
    }


def as_document(run: str, plan: LaunchPlan, launch: Launch, facts: ClusterFacts) -> dict[str, Any]:
    """Everything for `--json`; `ftcluster plan --facts` reads its `facts`."""
    return {
        "run": run,
        "state": "planned",
        "world_size": plan.world_size,
        "backend": plan.backend,
        "precision": plan.precision,
        "hosts": [host_document(host) for host in plan.hosts],
        "spares": [host_document(host) for host in plan.spares],
        "decisions": [vars(decision) for decision in plan.decisions],
        "launch": launch.shown(),
        "facts": facts.to_dict(),
    }
