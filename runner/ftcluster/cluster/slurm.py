"""Read the nodes of a Slurm job: their names, the job's CPUs on each node, and their facts.

All nodes must see the same ftcluster and the same prefix. Commands reach the nodes with srun, so
SSH is not needed. Slurm's environment variables are documented in sbatch(1), OUTPUT ENVIRONMENT
VARIABLES.
"""

import json
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ansible_collections.ftcluster.cluster.plugins.plugin_utils.host_answer import known_facts

from ftcluster.ansible.inventory import LOCALHOST, inventory_path
from ftcluster.cluster.facts import ClusterFacts, HostFacts, stack_name
from ftcluster.cluster.saved import Cluster, recall
from ftcluster.errors import FtclusterError, UsageError
from ftcluster_common.given_files import parse_json
from ftcluster_common.protocol.launch import SLURM_VARIABLE, SRUN_OPTIONS

NODES, CPUS = "SLURM_JOB_NODELIST", "SLURM_JOB_CPUS_PER_NODE"
# names are checked because they become arguments of srun, lines of a hostfile and parts of messages
JOB = re.compile(r"\d{1,10}", re.ASCII)
NODE = re.compile(r"[A-Za-z0-9_][\w.-]{0,252}", re.ASCII)  # slurm.conf(5): NodeName
REPEATED = re.compile(r"(\d{1,7})(?:\(x(\d{1,6})\))?", re.ASCII)
MOST_NODES = 65533  # maximum number of nodes of a job (MAX_SLURM_NODES)
AT_ONCE = 32  # number of nodes whose facts are gathered in parallel
SECONDS = 120  # time limit for srun on one node, which may be busy
MODULE = "ansible_collections.ftcluster.cluster.plugins.modules.host_facts"
CLOCK = ("clock_offset_seconds", "clock_error_seconds")  # facts that an action plugin measures
SHARED = (
    "set up ftcluster in a folder that all nodes see: ftcluster setup localhost "
    "-e ftcluster_root=false -e ftcluster_prefix=DIR"
)
# a shell script that runs a command if it sees a file; its arguments are the path of the file,
# which the first node has written, and the command
SEES_FILE = '[ -e "$1" ] || exit 3; shift; exec "$@"'
UNSEEN = 3  # exit code of this script if the node does not see the file


@dataclass(frozen=True)
class Allocation:
    """The nodes and CPUs of a Slurm job.

    Attributes:
        job: id of the job.
        nodes: Slurm's names of the nodes, this node first.
        cpus: number of the job's CPUs on each node.
        memory: size of the job's memory on each node in bytes; empty if not known.
        here: Slurm's name of this node; "" if this machine is not one of the nodes.
        copies: number of tasks in the job's step that run this command.
        restarts: number of times that Slurm has requeued the job.
    """

    job: str
    nodes: tuple[str, ...]
    cpus: tuple[int, ...]
    here: str
    copies: int
    restarts: int
    memory: tuple[int, ...] = ()


def allocation(environment: Mapping[str, str]) -> Allocation | None:
    """Return the allocation of the Slurm job that this command runs in; None outside of a job.

    Raises:
        UsageError: the allocation cannot be used, see `allocated`.
        FtclusterError: scontrol fails.
    """
    if SLURM_VARIABLE not in environment or NODES not in environment:
        return None
    argv = ["scontrol", "show", "hostnames", environment[NODES]]
    return allocated(environment, _output(argv).split())


def allocated(environment: Mapping[str, str], nodes: Sequence[str]) -> Allocation:
    """Read an allocation from a job's environment variables.

    Args:
        environment: environment variables of the job.
        nodes: names of the job's nodes, in Slurm's order.

    Raises:
        UsageError: the job is heterogeneous (the message lists the nodes of its parts), or its
            variables are inconsistent or not in Slurm's format.
    """
    if not JOB.fullmatch(environment[SLURM_VARIABLE]):
        raise _not_slurms(environment, SLURM_VARIABLE)
    if _number(environment, "SLURM_HET_SIZE", 1) > 1:
        parts = [
            environment[name]
            for name in sorted(environment)
            if name.startswith("SLURM_JOB_NODELIST_HET_GROUP_")
        ]
        raise UsageError(
            f"job {environment[SLURM_VARIABLE]} is heterogeneous ({' : '.join(parts)}), but a "
            "training run can only use the nodes of one part",
            "request all nodes at once, without `:` between options and without `#SBATCH hetjob`",
        )
    here = environment.get("SLURMD_NODENAME", "")
    try:
        cpus = repeated(environment.get(CPUS, "")) or (0,) * len(nodes)
    except ValueError:
        raise _not_slurms(environment, CPUS) from None
    if not nodes or len(cpus) != len(nodes):
        raise _not_slurms(environment, CPUS, NODES)
    if not all(map(NODE.fullmatch, nodes)) or len({*nodes}) < len(nodes):
        raise _not_slurms(environment, NODES)
    pairs = list(zip(nodes, cpus, strict=True))
    pairs.sort(key=lambda pair: pair[0] != here)  # stable
    of_node, of_cpu = (
        _bytes(environment.get(f"SLURM_MEM_PER_{what}", "")) for what in ("NODE", "CPU")
    )
    return Allocation(
        environment[SLURM_VARIABLE],
        tuple(name for name, _ in pairs),
        tuple(count for _, count in pairs),
        here if here in nodes else "",
        _number(environment, "SLURM_STEP_NUM_TASKS", 1) if "SLURM_PROCID" in environment else 1,
        _number(environment, "SLURM_RESTART_COUNT", 0),
        tuple(of_node or of_cpu * count for _, count in pairs) if of_node or of_cpu else (),
    )


def _bytes(text: str) -> int:
    """Convert a size as in sbatch's --mem to bytes; 0 for no size. The default unit is MB."""
    found = re.fullmatch(r"(\d{1,12})([KMGT]?)", text)
    return int(found[1]) << 10 * (1 + "KMGT".index(found[2] or "M")) if found else 0


def _number(environment: Mapping[str, str], name: str, default: int) -> int:
    """Return a whole number from a variable that Slurm has set.

    Raises:
        UsageError: the value is not a whole number.
    """
    text = environment.get(name, str(default))
    if not JOB.fullmatch(text):
        raise _not_slurms(environment, name)
    return int(text)


def _not_slurms(environment: Mapping[str, str], *names: str) -> UsageError:
    said = ", ".join(f"{name}={environment.get(name, '')}" for name in names)
    return UsageError(
        f"the environment variables do not describe a single Slurm job: {said}",
        f"start the command inside a job, or without a job: env -u {SLURM_VARIABLE} ftcluster ...",
    )


def repeated(text: str) -> tuple[int, ...]:
    """Expand Slurm's compressed list of numbers to one number per node.

    Raises:
        ValueError: the string is not such a list, or exceeds the maximum number of nodes.

    >>> repeated("4(x2),2")
    (4, 4, 2)
    """
    numbers: list[int] = []
    for word in filter(None, text.split(",")):
        match = REPEATED.fullmatch(word)
        if not match or len(numbers) + int(match[2] or "1") > MOST_NODES:
            raise ValueError(f"not a list of CPU counts in Slurm's format: {word[:40]!a}")
        numbers += [int(match[1])] * int(match[2] or "1")
    return tuple(numbers)


def on_first_node(job: Allocation, terminal: bool, command: Sequence[str]) -> list[str]:
    """Return the srun command that runs `command` on a job's first node, for use after `salloc`.

    Args:
        terminal: True if the command needs a terminal.
    """
    pty = ["--pty"] if terminal else []
    return [*_srun(job.job, job.nodes[0]), *pty, *command]


def cluster_of_job(job: Allocation) -> Cluster:
    """Return the nodes of a job as a cluster, with the prefix of the last setup.

    Raises:
        UsageError: several tasks of a step run this command.
        FtclusterError: nodes cannot be used; lists each such node with the reason.
    """
    if job.copies > 1:
        raise UsageError(
            f"srun has started this command {job.copies} times, but one start is enough: the "
            "command starts the ranks itself",
            "start it without srun",
        )
    head = recall().facts.head
    if head.rank_user:
        raise FtclusterError(
            f"the setup in {head.prefix} runs ranks as the account {head.rank_user}, but in a "
            "Slurm job ranks run as the job's user",
            SHARED,
        )
    return Cluster(
        (inventory_path(LOCALHOST),),
        ClusterFacts(gather(job, head.prefix)),
        slurm_job=job.job,
    )


def requeue(name: str) -> None:
    """Requeue a job, or a task of a job array: Slurm ends it and starts it again.

    Raises:
        FtclusterError: Slurm refuses, for example because the job was submitted without --requeue.
    """
    _output(["scontrol", "requeue", name])


def gather(job: Allocation, prefix: str) -> tuple[HostFacts, ...]:
    """Return the facts of a job's nodes, in the same form as the facts that preflight gathers.

    Raises:
        FtclusterError: nodes return no valid response, or do not see the same prefix; lists all of
            these nodes.
    """
    if not Path(prefix, "current").exists():
        raise FtclusterError(f"{job.nodes[0]}: no stack is set up in {prefix}", SHARED)
    with tempfile.NamedTemporaryFile(prefix=".slurm-", dir=prefix) as seen:

        def ask(node: str) -> dict[str, Any] | str:
            given = {"prefix": prefix, "inventory_address": node, "local": True}
            arguments = {"ANSIBLE_MODULE_ARGS": {**given, "other_hosts": [*job.nodes]}}
            command = [sys.executable, "-P", "-m", MODULE, json.dumps(arguments)]
            return _facts(_srun(job.job, node), seen.name, command, prefix)

        with ThreadPoolExecutor(AT_ONCE) as pool:
            answers = dict(zip(job.nodes, pool.map(ask, job.nodes), strict=True))
    problems = [f"{node}: {answer}" for node, answer in answers.items() if isinstance(answer, str)]
    if problems:
        raise FtclusterError("\n  ".join(problems), "no rank was started")
    return tuple(
        host_facts(node, facts, cpus, memory)
        for (node, facts), cpus, memory in zip(
            answers.items(), job.cpus, job.memory or (0,) * len(job.cpus), strict=True
        )
        if not isinstance(facts, str)
    )


def host_facts(node: str, facts: Mapping[str, Any], cpus: int, memory: int = 0) -> HostFacts:
    """Return the facts of a node, limited to the job's CPUs and memory on the node.

    If Slurm does not bind the job to specific CPUs, the number of its CPUs is treated as a CPU
    quota, like the quota of a container.

    Args:
        node: name of the node.
        facts: result of the module `ftcluster.cluster.host_facts` on the node.
        cpus: number of the job's CPUs on the node; 0 if not known.
        memory: size of the job's memory on the node in bytes; 0 if not known.
    """
    values = {
        **facts,
        "name": node,
        "connection": "local",
        "can_become_root": False,
        "rank_user": "",
        "stack": stack_name(facts["current"]),
        **dict.fromkeys(CLOCK),
    }
    if memory:
        values["memory_bytes"] = min(memory, facts["memory_bytes"])
    if 0 < cpus < facts["threads"]:
        quota = min(cpus, facts["cpu_quota"] or cpus)
        cores = max(1, min(facts["cores"], int(quota)))
        nodes = min(facts["numa_nodes"], cores)
        values |= {"cpu_quota": float(quota), "cores": cores, "numa_nodes": nodes}
    return HostFacts.from_dict(values)


def _srun(job: str, node: str) -> list[str]:
    options = [f"--jobid={job}", "--nodes=1", "--ntasks=1", f"--nodelist={node}"]
    return ["srun", *options, *SRUN_OPTIONS.split()]


def _facts(srun: list[str], seen: str, command: list[str], prefix: str) -> dict[str, Any] | str:
    """Return the facts of a node, or the reason why they cannot be gathered."""
    argv = [*srun, "sh", "-c", SEES_FILE, "sh", seen, *command]
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8",
            errors="replace", timeout=SECONDS, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"srun got no response within {SECONDS} s"
    if done.returncode == UNSEEN:
        return f"it does not see the folder {prefix} of {socket.gethostname()}; {SHARED}"
    try:
        answer = parse_json(done.stdout)["facts"]
    except (ValueError, KeyError, TypeError):
        lines = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
        return f"it cannot run {command[0]}: {lines[0] if lines else 'no output'}"
    facts, wrong = known_facts(answer)
    if wrong:
        return "; ".join(wrong)
    return facts if facts["current"] else f"no stack is set up in {prefix}"


def _output(argv: list[str]) -> str:
    try:
        return subprocess.run(
            argv, capture_output=True, encoding="utf-8", errors="replace", check=True
        ).stdout
    except FileNotFoundError:
        raise FtclusterError(f"{argv[0]} is not on PATH, although this is a Slurm job") from None
    except subprocess.CalledProcessError as error:
        raise FtclusterError(f"{' '.join(argv)} failed: {error.stderr.strip()}") from None
