"""Prepare a run that continues another run: its options, its hosts and its plan."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ftcluster.cluster.absent import AbsentHost
from ftcluster.cluster.chosen_hosts import with_hosts
from ftcluster.cluster.saved import Cluster
from ftcluster.errors import FtclusterError, UsageError
from ftcluster.launch.follow import new_run_id
from ftcluster.launch.kept_options import DEFAULTS, KeptOptions
from ftcluster.launch.mpirun import render
from ftcluster.launch.run_hosts import UNREACHABLE
from ftcluster.launch.runs import FoundJob
from ftcluster.launch.training_run import TrainingRun
from ftcluster.operations.train.prepare import LaunchOptions, code_notes, size_of
from ftcluster.planning.plan import first_hosts
from ftcluster.planning.spares import BACK, next_hosts, plan_with_spares
from ftcluster.stacks.catalog import load_stacks
from ftcluster.text.shell_words import shell_line
from ftcluster_common.protocol.run_state import name_of_run

# command-line flag of each kept option
FLAGS = {
    "ranks_per_host": "--ranks-per-host", "spares": "--spares", "max_restarts": "--max-restarts",
    "min_nodes": "--min-nodes", "timeout_seconds": "--timeout", "grace_seconds": "--grace-seconds",
    "wait": "--wait", "share_hosts": "--share-hosts", "tags": "--tag", "env": "--env",
    "secret_env": "--env",
}  # fmt: skip
LAUNCH_FIELDS = ("max_restarts", "min_nodes", "timeout_seconds", "grace_seconds")
EITHER = ("wait", "share_hosts")  # options that exclude each other


@dataclass(frozen=True)
class HostCounts:
    """The requested hosts and ranks of a run that continues another run.

    Attributes:
        nodes: number of hosts with ranks; None for as many as the continued run used.
        spares: number of spare hosts; None for as many as the continued run had, or fewer if too
            few hosts remain.
        ranks_per_host: number of ranks on each host; None if the plan decides.
    """

    nodes: int | None = None
    spares: int | None = None
    ranks_per_host: int | None = None


def with_kept_options(
    shape: HostCounts,
    launch: LaunchOptions,
    job: FoundJob,
    recorded: Mapping[str, str],
) -> tuple[HostCounts, LaunchOptions, str]:
    """Add the options of the continued run's launch, unless the user sets other values.

    Args:
        recorded: environment variables of the continued run's ranks, from this control node's
            record; {} without a record.

    Returns:
        The hosts and ranks, the options of the launch, and a note that lists the kept options, or
        "" if there are none.

    Raises:
        UsageError: this machine does not have the values of some of the run's variables.
    """
    kept = job.options
    taken = {
        name: getattr(kept, name)
        for name in LAUNCH_FIELDS
        if name in kept.changed() and getattr(launch, name) is None
    }
    if not any(getattr(launch, name) for name in EITHER):
        taken |= {name: True for name in EITHER if getattr(kept, name)}
    of_shape: dict[str, object] = {
        name: getattr(kept, name)
        for name in ("spares", "ranks_per_host")
        if name in kept.changed() and getattr(shape, name) is None
    }
    tags = _without(kept.tags, launch.tags)
    env = _variables(kept, launch.env, job.run, recorded)
    ranks = shape.ranks_per_host or kept.ranks_per_host
    note = ""
    arguments = [*_arguments({**of_shape, **taken, "tags": tags}), *_env_arguments(env)]
    if arguments:
        note = f"options kept from run {job.run}: {shell_line(arguments)}"
    if kept.notifies and not (launch.notify or launch.webhook):
        again = f"run {job.run} used --notify or --webhook, which is not saved: pass it again"
        note = "; ".join(filter(None, (note, again)))
    return (
        replace(shape, ranks_per_host=ranks),
        replace(launch, **taken, tags=(*tags, *launch.tags), env=(*env, *launch.env)),
        note,
    )


def _without(pairs: Sequence[str], others: Sequence[str]) -> tuple[str, ...]:
    """Return the NAME=VALUE pairs whose names are not in `others`."""
    names = {pair.partition("=")[0] for pair in others}
    return tuple(pair for pair in pairs if pair.partition("=")[0] not in names)


def _variables(
    kept: KeptOptions,
    requested: Sequence[str],
    run: str,
    recorded: Mapping[str, str],
) -> tuple[str, ...]:
    """Return arguments of --env for the run's variables that the user does not set now.

    Raises:
        UsageError: this machine does not know the values of some variables; the message names them.
    """
    plain, secret = _without(kept.env, requested), _without(kept.secret_env, requested)
    problems = [f"--env {name}: this machine has no record of its value"
                for name in plain if name not in recorded]  # fmt: skip
    problems += [
        f"--env {name}: the variable is not set on this machine"
        for name in secret
        if name not in os.environ
    ]
    if problems:
        raise UsageError(
            f"run {run} was launched with variables whose values are not known here\n  "
            + "\n  ".join(problems),
            "pass them again: --env NAME=VALUE; for a credential, set the variable NAME on this "
            "machine and pass --env NAME",
        )
    return (*(f"{name}={recorded[name]}" for name in plain), *secret)


def _arguments(options: Mapping[str, object]) -> Iterator[str]:
    """Yield the command line's arguments for kept options."""
    for name, value in options.items():
        for item in value if isinstance(value, tuple) else (value,):
            yield FLAGS[name]
            if not isinstance(item, bool):
                yield f"{item:g}" if isinstance(item, float) else str(item)


def _env_arguments(env: Sequence[str]) -> Iterator[str]:
    for pair in env:
        yield from ("--env", pair)


def resumed_run(
    job: FoundJob,
    cluster: Cluster,
    shape: HostCounts,
    must_resume: bool,
    name: str | None = None,
    partly: bool = False,
    named: Sequence[str] = (),
) -> TrainingRun:
    """Prepare a run that continues another run, on the hosts that respond.

    Args:
        job: the run to continue.
        shape: the hosts and ranks.
        must_resume: True to raise an error if the run has saved no state to continue from.
        name: beginning of the new run's id; None for the name of the continued run.
        partly: True if `cluster` contains only the hosts that respond.
        named: names of the hosts to use; if empty, the hosts of the continued run.

    Raises:
        UsageError: `named` contains a host that cannot be used.
        FtclusterError: no host responds, the continued run has saved no state or used IPEX, or
            the plan is not valid.
    """
    if must_resume and not job.saved and not job.recipe.training.resume_from_checkpoint:
        raise FtclusterError(
            f"run {job.run} has no checkpoint or snapshot on {', '.join(job.hosts)}",
            f"train again from the beginning; to see how the run ended: ftcluster logs {job.run}",
        )
    cluster = with_hosts(cluster, named)
    hosts, nodes = cluster.facts, shape.nodes
    absent: tuple[AbsentHost, ...] = ()
    if named:
        if silent := [name for name in named if name not in job.hosts]:
            raise FtclusterError(f"no response from {', '.join(silent)}", UNREACHABLE)
    elif not cluster.slurm_job:  # the first node responds for all nodes
        facts_of = {host.name: host for host in hosts.hosts}
        names = [name for name in job.hosts if name not in cluster.drained]
        if not names:
            raise FtclusterError(
                f"every host that responds is drained: {', '.join(job.hosts)}", BACK
            )
        hosts = replace(hosts, hosts=tuple(facts_of[name] for name in names))
        nodes = nodes or min(job.nodes, len(names))
        absent = absent_hosts(job, cluster, partly)
        cluster = replace(cluster, facts=hosts, record_host=cluster.head)
    spares = shape.spares
    if spares is None:
        spares = min(job.options.spares, max(0, len(hosts.hosts) - (nodes or len(hosts.hosts))))
        spares = spares if nodes != 1 else 0  # no spare can replace the head of a run with one node
    facts = first_hosts(hosts, nodes, absent)
    further = next_hosts(hosts, nodes, spares, absent)
    size = size_of(job.recipe)
    stacks = load_stacks()
    decided = plan_with_spares(
        facts, further, job.recipe, stacks, shape.ranks_per_host, size, drained=cluster.drained
    )
    if job.ipex or decided.ipex:
        raise FtclusterError(
            f"run {job.run} cannot be resumed, because IPEX keeps its own copies of the weights",
            "train again from the beginning; runs with training.use_ipex=false can be resumed",
        )
    run_id, resumed = new_run_id(name or name_of_run(job.run)), (job.run, *job.resume)
    launch = render(decided, run_id, slurm_job=cluster.slurm_job)
    prepared = [host.name for host in decided.prepared]
    notes = tuple(
        f"{host.name} is not used: it {host.why}; {host.remedy}"
        for host in absent
        if host.name in hosts_of(job) and host.name not in prepared
    )
    everyone = tuple(dict.fromkeys([*(() if named else hosts_of(job)), *prepared]))
    kept = replace(
        DEFAULTS,
        hosts=everyone,
        spares=job.options.spares if shape.spares is None else shape.spares,
        ranks_per_host=shape.ranks_per_host,
    )
    return TrainingRun(
        run_id, cluster, decided, launch, job.recipe, notes=(*notes, *code_notes(job.code)),
        resume=resumed, code=job.code, kept=kept,
    )  # fmt: skip


def hosts_of(job: FoundJob) -> tuple[str, ...]:
    """Return the hosts that the continued run was prepared on, or else the hosts with its files."""
    return job.options.hosts or tuple(name for name in job.hosts if name not in job.others)


def absent_hosts(job: FoundJob, cluster: Cluster, partly: bool = False) -> tuple[AbsentHost, ...]:
    """Return the continued run's hosts that the new run does not use, with the reasons.

    Args:
        partly: True if `cluster` contains only the hosts that respond.
    """
    members = {host.name for host in cluster.facts.hosts}
    reasons = {host.name: host for host in cluster.absent}
    absent = []
    for name in hosts_of(job):
        if name in reasons:
            absent.append(reasons[name])
        elif name in job.others:
            why = f"responds, but has no files of run {job.run}"
            absent.append(AbsentHost(name, why, f"to use it: --nodes {len(job.hosts)}"))
        elif name in job.hosts:
            continue
        elif name in members:
            remedy = "to find the reason: ftcluster check"
            absent.append(AbsentHost(name, "does not respond", remedy))
        elif partly:
            why = "does not respond, or is not in the inventory"
            absent.append(AbsentHost(name, why, "to find the reason: ftcluster check INVENTORY"))
        else:
            why = "is no longer a host of the cluster"
            absent.append(AbsentHost(name, why, f"to add it: ftcluster hosts add {name}"))
    listed = {host.name for host in absent}
    return (*absent, *(host for host in cluster.absent if host.name not in listed))
