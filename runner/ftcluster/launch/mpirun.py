"""From a LaunchPlan to the launch that the head gets, and its commands. Pure functions only."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ftcluster.planning.backends import WORKERS
from ftcluster.planning.plan import HostPlan, LaunchPlan
from ftcluster.text.comments import comments
from ftcluster.text.shell_words import shell_line, shell_word
from ftcluster_common.protocol.launch import (
    BACKEND_VARIABLE,
    CCL,
    MPI_VARIABLES,
    RUN_VARIABLE,
    Launch,
    RankCores,
    RankHost,
    head_variables,
    mesh_variables,
    mpirun_command,
    slurm_variables,
)
from ftcluster_common.protocol.network import PROVIDER_VARIABLE, network_variables

FREE_PORT = "from ftcluster_train.host.supervisor import free_port; print(free_port())"
SETVARS = "oneccl_bindings_for_pytorch/env/setvars.sh"  # what oneccl_bind_pt's libraries need


def stack_link(plan: LaunchPlan) -> str:
    """The link to the stack in use, the same on every host."""
    return f"{plan.prefix}/current"


def run_dir(plan: LaunchPlan, run: str) -> str:
    """The run's folder on the head."""
    return f"{plan.prefix}/runs/{run}"


def render(plan: LaunchPlan, run: str, program: Sequence[str] = (), slurm_job: str = "") -> Launch:
    """The launch of a run.

    Args:
        program: arguments of the stack's Python for each rank; left out, those of a training.
        slurm_job: the Slurm job that has the hosts; "" for none.
    """
    folder = run_dir(plan, run)
    several = len(plan.hosts) > 1
    ssh_config = f"{plan.prefix}/mesh/ssh_config" if several and not slurm_job else ""
    env = {
        RUN_VARIABLE: run,
        BACKEND_VARIABLE: plan.backend,
        "MASTER_ADDR": plan.hosts[0].address,  # its port is chosen on the head at the launch
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
        env["CCL_WORKER_COUNT"] = str(WORKERS)
    return Launch(
        run_dir=folder,
        program=tuple(program) or ("-m", "ftcluster_train.engine.rank", folder),
        env=env,
        hosts=tuple(launch_host(plan, host) for host in plan.hosts),
        ssh_config=ssh_config,
        stack=stack_link(plan),
        idle=tuple(launch_host(plan, host) for host in plan.spares),
        spares=len(plan.spares),
        slurm_job=slurm_job,
    )


def launch_host(plan: LaunchPlan, host: HostPlan) -> RankHost:
    """One host of a launch, with its ranks."""
    return RankHost(
        host.name,
        host.address,
        tuple(RankCores(rank.cpus, rank.threads, tuple(rank.memory)) for rank in host.placement),
        # relative, because a launch keeps to the stack that the link leads to when it starts
        tuple(library.removeprefix(f"{stack_link(plan)}/") for library in host.preload),
        _host_variables(plan, host),
    )


def _host_variables(plan: LaunchPlan, host: HostPlan) -> dict[str, str]:
    """Variables of the ranks of one host."""
    variables = {}
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
        # each rank needs to know those of all ranks (oneCCL Developer Guide, Environment Variables)
        variables["CCL_WORKER_AFFINITY"] = ",".join(rank.workers for rank in host.placement)
    return variables


def as_shell(launch: Launch, plan: LaunchPlan, job: Mapping[str, Any] | None = None) -> str:
    """The launch as a person would paste it into a shell on the head.

    Args:
        job: the content of job.json; left out, nothing is prepared for the ranks.
    """
    command = mpirun_command(launch)
    folder, hostfile = shell_word(launch.run_dir), shell_word(launch.hostfile_path)
    python = shell_word(f"{launch.stack}/bin/python")
    user = f", as the user {plan.rank_user}" if plan.rank_user else ""
    lines = [
        *comments([f"on {plan.hosts[0].name}{user}"]),
        "cd /  # Python and the ranks import from the current folder",
        *(["umask 077"] if job is not None else []),
        f"mkdir -p {folder}",
        f"printf '%s\\n' {shell_line(command.hostfile.split())} > {hostfile}",
    ]
    if job is not None:
        prepare = [f"{python} -m ftcluster_train.engine.prepare {folder}"]
        if launch.script:
            prepare = []
        lines += [f"printf %s {shell_word(json.dumps(job))} > {folder}/job.json", *prepare]
        separate = () if launch.slurm_job else launch.hosts[1:] + launch.idle
        others = " ".join(shell_word(host.address) for host in separate)
        if others:
            here = ["cd /", "umask 077", f"mkdir -p {folder}", f"cat > {folder}/job.json", *prepare]
            there = shell_word(" && ".join(here))
            ssh = f"ssh -F {shell_word(launch.ssh_config)}"
            lines.append(f"for host in {others}; do {ssh} $host {there} < {folder}/job.json; done")
    if plan.backend == CCL:
        lines.append(f". {shell_word(launch.stack)}/lib/python3*/site-packages/{SETVARS}")
    on_head = head_variables(shell_word(launch.stack), "$PATH", "$port")
    variables = command.env | (launch.supervised_variables if job is not None else {})
    lines += [
        f"port=$({python} -c {shell_word(FREE_PORT)})",
        f"env {' '.join(f'{key}={value}' for key, value in on_head.items())} \\",
        *(f"  {key}={shell_word(value)} \\" for key, value in sorted(variables.items())),
        f"  {shell_line(command.argv)}",
    ]
    return "\n".join(lines)
