"""From a LaunchPlan to the files and the command that start it. Pure functions only."""

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from ftcluster.planning.backends import oneccl_host_variables, oneccl_variables
from ftcluster.planning.plan import HostPlan, LaunchPlan
from ftcluster_common.launch import (
    BACKEND_VARIABLE,
    CCL,
    MPI_VARIABLES,
    PLACEMENT_VARIABLE,
    RUN_VARIABLE,
    Host,
    Launch,
    grouped,
    head_variables,
    hostfile_of,
    label_pattern,
    mesh_variables,
    slurm_variables,
)
from ftcluster_common.network import PROVIDER_VARIABLE, network_variables

FREE_PORT = "from ftcluster_train.host.supervisor import free_port; print(free_port())"
SETVARS = "oneccl_bindings_for_pytorch/env/setvars.sh"  # what oneccl_bind_pt's libraries need


def stack_link(plan: LaunchPlan) -> str:
    """The link to the stack in use, the same on every host."""
    return f"{plan.prefix}/current"


def stack_bin(plan: LaunchPlan) -> str:
    """The folder with the stack's programs, by the link."""
    return f"{stack_link(plan)}/bin"


def run_dir(plan: LaunchPlan, run: str) -> str:
    """The run's folder on the head."""
    return f"{plan.prefix}/runs/{run}"


def render(plan: LaunchPlan, run: str, program: Sequence[str] = (), slurm_job: str = "") -> Launch:
    """The mpirun command of a run.

    Args:
        program: what each rank becomes once it is bound; left out, the stack's Python with
            `ftcluster_train.engine.rank`.
        slurm_job: the Slurm job that has the hosts; "" for none.
    """
    bin_dir, folder = stack_bin(plan), run_dir(plan, run)
    python = f"{bin_dir}/python"
    several = len(plan.hosts) > 1
    ssh_config = f"{plan.prefix}/mesh/ssh_config" if several and not slurm_job else ""
    env = {
        RUN_VARIABLE: run,
        BACKEND_VARIABLE: plan.backend,
        PLACEMENT_VARIABLE: placement_text(plan),
        "MASTER_ADDR": plan.master_address,
        **MPI_VARIABLES,
        "TOKENIZERS_PARALLELISM": "false",  # each rank has its own cores; no pool across them
        # torch asks the kernel for huge pages for tensors of 2 MiB and more, which it gives where
        # transparent huge pages are set to `madvise`: one page fault instead of 512
        "THP_MEM_ALLOC_ENABLE": "1",
        **mesh_variables(ssh_config, plan.interface),
        **slurm_variables(slurm_job, plan.interface),
    }
    if plan.rank_user:  # the stack is not the account's to write
        env["PYTHONPYCACHEPREFIX"] = f"{plan.prefix}/cache"
    if plan.provider:
        env[PROVIDER_VARIABLE] = plan.provider
    if plan.backend == CCL:
        env |= oneccl_variables()
    argv = (
        f"{bin_dir}/mpirun",
        "-machinefile", f"{folder}/hostfile",  # -f fills the first host, whatever its count says
        "-n", str(plan.world_size),
        "-prepend-pattern", label_pattern(run),
        python, "-m", "ftcluster_train.host.bind",
        *(program or (python, "-m", "ftcluster_train.engine.rank", folder)),
    )  # fmt: skip
    hosts, idle = (
        tuple(Host(host.name, host.address) for host in some) for some in (plan.hosts, plan.spares)
    )
    return Launch(
        run_dir=folder,
        argv=argv,
        env=env,
        hostfile=hostfile_of(hosts, [host.ranks for host in plan.hosts], bool(slurm_job)),
        hosts=hosts,
        ssh_config=ssh_config,
        stack=stack_link(plan),
        idle=idle,
        spares=len(idle),
        slurm_job=slurm_job,
    )


def placement_text(plan: LaunchPlan) -> str:
    """The placement of all ranks, which `ftcluster_train.host.bind` reads on the hosts.

    Hosts that are alike share an entry, because a variable has a limit (128 KiB, MAX_ARG_STRLEN):

        {"kinds": [{"env": {"LD_PRELOAD": "/usr/lib/..."}, "ranks":
            [{"cpus": "0-31", "threads": 31, "memory": [0]}, ...]}, ...],
         "hosts": [[0, 7], [1, 1]]}

    are seven hosts of the first kind and then one of the second. Spares have another list, `idle`.
    """
    kinds: list[dict[str, Any]] = []

    def number(host: HostPlan) -> int:
        kind = {
            "env": _host_variables(plan, host),
            "ranks": [
                {"cpus": rank.cpus, "threads": rank.threads, "memory": list(rank.memory)}
                for rank in host.placement
            ],
        }
        if kind not in kinds:
            kinds.append(kind)
        return kinds.index(kind)

    placement = {"kinds": kinds, "hosts": grouped(map(number, plan.hosts))}
    if plan.spares:
        placement["idle"] = grouped(map(number, plan.spares))
    return json.dumps(placement, separators=(",", ":"))


def _host_variables(plan: LaunchPlan, host: HostPlan) -> dict[str, str]:
    """Variables of the ranks of one host."""
    variables = {}
    if host.preload:
        variables["LD_PRELOAD"] = ":".join(host.preload)
    if host.allocator:
        # the default, 1, gives free memory back to the kernel, all of it whenever the heap grows
        # (PageHeap::New in gperftools), and the next step has to fault it in again
        variables["TCMALLOC_RELEASE_RATE"] = "0"
    if host.openmp:
        # the default is to poll for 200 ms after each product (OpenMP run-time's manual), which
        # keeps communication threads from the cores
        variables["KMP_BLOCKTIME"] = "1"
    if host.interface:
        variables["GLOO_SOCKET_IFNAME"] = host.interface
    variables |= network_variables(plan.provider, host.network)
    if plan.backend == CCL:
        variables |= oneccl_host_variables([rank.workers for rank in host.placement])
    return variables


def as_shell(launch: Launch, plan: LaunchPlan, job: Mapping[str, Any] | None = None) -> str:
    """The launch as a person would paste it into a shell on the head.

    Args:
        job: the content of job.json; left out, nothing is prepared for the ranks.
    """
    folder, hostfile = shlex.quote(launch.run_dir), shlex.quote(launch.hostfile_path)
    python = shlex.quote(f"{launch.stack}/bin/python")
    user = f", as the user {plan.rank_user}" if plan.rank_user else ""
    lines = [
        f"# on {plan.hosts[0].name}{user}",
        *(["umask 077"] if job is not None else []),
        f"mkdir -p {folder}",
        f"printf %s {shlex.quote(launch.hostfile)} > {hostfile}",
    ]
    if job is not None:
        training = launch.script_ranks is None
        prepare = [f"{python} -m ftcluster_train.engine.prepare {folder}"] if training else []
        lines += [f"printf %s {shlex.quote(json.dumps(job))} > {folder}/job.json", *prepare]
        separate = () if launch.slurm_job else launch.hosts[1:] + launch.idle
        others = " ".join(shlex.quote(host.address) for host in separate)
        if others:
            here = ["umask 077", f"mkdir -p {folder}", f"cat > {folder}/job.json", *prepare]
            there = shlex.quote(" && ".join(here))
            ssh = f"ssh -F {shlex.quote(launch.ssh_config)}"
            lines.append(f"for host in {others}; do {ssh} $host {there} < {folder}/job.json; done")
    if plan.backend == CCL:
        lines.append(f". {shlex.quote(launch.stack)}/lib/python3*/site-packages/{SETVARS}")
    on_head = head_variables(shlex.quote(launch.stack), "$PATH", "$port")
    variables = launch.variables if job is not None else launch.env
    lines += [
        f"port=$({python} -c {shlex.quote(FREE_PORT)})",
        f"env {' '.join(f'{key}={value}' for key, value in on_head.items())} \\",
        *(f"  {key}={shlex.quote(value)} \\" for key, value in sorted(variables.items())),
        f"  {shlex.join(launch.argv)}",
    ]
    return "\n".join(lines)
