"""The run that `bench allreduce` launches, and its measurements."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ftcluster.cluster.facts import HostFacts
from ftcluster.cluster.saved import Cluster
from ftcluster.errors import FtclusterError, UsageError
from ftcluster.launch.follow import launch_and_follow, new_run_id
from ftcluster.launch.mpirun import run_dir
from ftcluster.launch.run import failure, raise_if_stopped
from ftcluster.launch.script_run import ScriptRun, render_script
from ftcluster.planning.backends import stack_of
from ftcluster.planning.memory import USABLE, gigabytes
from ftcluster.planning.plan import LaunchPlan, first_hosts, plan
from ftcluster.progress.view import View
from ftcluster.stacks.catalog import load_stacks
from ftcluster.user_script.command import Script
from ftcluster_common.protocol.launch import CCL, IMPI, MPI

MODULE = "ftcluster_train.health.bench_all_reduce"
UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}  # the same as in nccl-tests
COPIES = 3  # maximum buffers per rank: the tensor, a copy by gloo or MPI, and data in flight
LEAST_MS, MOST_MS = 1e-3, 1e9
RUNTIME = 300 * 10**6  # memory of a rank without buffers in bytes: Python with torch imported


@dataclass(frozen=True)
class MeasurementEvents:
    """The events in which the ranks report their measurements.

    Attributes:
        times: events `all_reduce`, including events about sizes that do not fit in memory.
        links: events `link`.
    """

    times: list[dict[str, Any]] = field(default_factory=list)
    links: list[dict[str, Any]] = field(default_factory=list)

    def add(self, event: dict[str, Any]) -> None:
        """Add an event of the run."""
        if event["event"] == "all_reduce":
            self.times.append(event)
        elif event["event"] == "link":
            self.links.append(event)

    def raise_for_other_forms(self) -> None:
        """Raise an error if no result can be computed from the events.

        Raises:
            FtclusterError: sizes were measured with different backends, or a value is impossible.
        """
        times = [time for time in self.times if not time["left_out"]]
        ms = [value for time in times for value in time["milliseconds"].values()]
        backends = {tuple(sorted(time["milliseconds"])) for time in times}
        right = (
            len(backends) < 2
            and () not in backends
            and all(value >= LEAST_MS for value in ms)
            and all(time["bytes"] > 0 for time in times)
            and all(link["mb_per_second"] > 0 for link in self.links)
            and all(
                len(link["ranks"]) == 2 and all(isinstance(rank, int) for rank in link["ranks"])
                for link in self.links
            )
        )
        if not right:
            raise FtclusterError(
                "the measurements that the head reports are inconsistent",
                "check the software on the head, or run ftcluster setup",
            )


@dataclass(frozen=True)
class Bench:
    """A prepared run that measures all-reduces.

    Attributes:
        hosts: facts of the hosts with ranks.
        stack: name of the stack.
        left_out: reason why a size does not fit in memory, by size in bytes.
    """

    run: ScriptRun
    hosts: tuple[HostFacts, ...]
    stack: str
    left_out: dict[int, str]


def read_size(text: str) -> int:
    """Return a size from the command line in bytes.

    >>> read_size("4K"), read_size("25M"), read_size("512")
    (4096, 26214400, 512)

    Raises:
        UsageError: the string is not a size, or the size is not divisible by the 4 bytes of fp32.
    """
    match = re.fullmatch(r"(\d+)([KMG]?)(i?B)?", text, re.IGNORECASE)
    size = int(match[1]) * UNITS[match[2].upper()] if match else 0
    if size < 4 or size % 4:
        raise UsageError(
            f"'{text}' is not a size", "write 4K, 25M or 1G, or a number of bytes divisible by 4"
        )
    return size


def size_text(size: int) -> str:
    """Format a size, such as 25 MiB.

    >>> size_text(4096), size_text(26214400), size_text(1000)
    ('4 KiB', '25 MiB', '1000 B')
    """
    unit = max((unit for unit in UNITS if size % UNITS[unit] == 0), key=lambda unit: UNITS[unit])
    return f"{size // UNITS[unit]} {unit}{'i' if unit else ''}B"


def without_room(
    sizes: Sequence[int], hosts: Sequence[HostFacts], decided: LaunchPlan
) -> dict[int, str]:
    """Return the reason why a size does not fit in a host's memory, for each such size."""
    reasons = {}
    for size in sizes:
        for facts, host in zip(hosts, decided.hosts, strict=True):
            need = host.ranks * (COPIES * size + RUNTIME)
            if need > USABLE * facts.memory_bytes:
                have = gigabytes(facts.memory_bytes)
                reasons[size] = (
                    f"{host.ranks} ranks on {host.name} need {gigabytes(need)} of memory, but the "
                    f"host has only {have}"
                )
    return reasons


def prepare(
    cluster: Cluster,
    sizes: Sequence[int],
    backends: Sequence[str],
    nodes: int | None,
    ranks_per_host: int | None,
    seconds: int,
) -> Bench:
    """Prepare the run without changing anything.

    Args:
        sizes: sizes to measure, in bytes.
        backends: backends to measure; empty for all backends of the stack.
        nodes: number of hosts; None for all hosts of the cluster.
        ranks_per_host: ranks on each host; None if the plan decides.
        seconds: time limit of the whole measurement in seconds.

    Raises:
        UsageError: there is only one rank, or the stack does not have a backend.
        FtclusterError: the plan is not valid.
    """
    # earlier measurements must not change the plan
    facts = replace(first_hosts(cluster.usable, nodes, cluster.absent), all_reduce=None)
    stacks = load_stacks()
    stack = stack_of(facts, stacks)
    decided = plan(facts, None, stacks, ranks_per_host)
    if decided.world_size == 1:
        raise UsageError(
            "an all-reduce needs two ranks, but there would be only one", "use --ranks-per-host 2"
        )
    usable = [name for name in stack.backends if name != CCL or decided.backend == CCL]
    missing = [name for name in backends if name not in usable]
    if missing:
        raise UsageError(
            f"the stack {stack.name} has no backend {', '.join(missing)} for these ranks",
            f"usable backends: {', '.join(usable)}",
        )
    chosen = sorted(backends or usable)
    left_out = without_room(sizes, facts.hosts, decided)
    run = new_run_id("bench-allreduce")
    request = {
        "sizes": [size for size in sizes if size not in left_out],
        "backends": [*chosen, *([MPI] if IMPI in usable else [])],
        "seconds": seconds,
    }
    program = ("-m", MODULE, run_dir(decided, run), json.dumps(request))
    script = Script("bench-allreduce", program, program[2:], None, None)
    launch = render_script(decided, run)
    scripted = ScriptRun(run, cluster, decided, launch, script, None)
    return Bench(scripted, facts.hosts, stack.name, left_out)


def measure(
    bench: Bench, view: View, connection_options: tuple[str, ...]
) -> tuple[MeasurementEvents, float]:
    """Launch the run and follow it to its end; return the measurements and the seconds it took.

    Args:
        connection_options: arguments of ansible-playbook for reaching the hosts.

    Raises:
        FtclusterError: the run failed, could not be launched, or reports impossible values.
        Interrupted: the user stopped the run; all ranks have ended.
    """
    measured = MeasurementEvents()
    followed = launch_and_follow(
        bench.run, view, connection_options, measured.add, may_detach=False
    )
    details = {"run": bench.run.id}
    raise_if_stopped(followed, details)
    if followed.progress.state != "done":
        error = failure(bench.run, followed)
        error.details = details
        raise error
    measured.raise_for_other_forms()
    return measured, followed.progress.seconds
