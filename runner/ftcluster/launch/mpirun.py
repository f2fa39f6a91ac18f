"""Create a Launch from a plan, and format it as shell commands. Pure functions only."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ftcluster.launch.environment import all_rank_variables, host_variables, shell_assignments
from ftcluster.planning.plan import HostPlan, LaunchPlan
from ftcluster.text.comments import comments
from ftcluster.text.shell_words import shell_line, shell_word
from ftcluster_common.protocol.launch import CCL, Launch, RankCores, RankHost, mpirun_command

FREE_PORT = "from ftcluster_train.host.supervisor import free_port; print(free_port())"
SETVARS = "oneccl_bindings_for_pytorch/env/setvars.sh"  # sets the variables of oneccl_bind_pt


def stack_link(plan: LaunchPlan) -> str:
    """Return the path of the link to the active stack. It is the same on every host."""
    return f"{plan.prefix}/current"


def run_dir(plan: LaunchPlan, run: str) -> str:
    """Return the path of the run's folder on the head."""
    return f"{plan.prefix}/runs/{run}"


def render(plan: LaunchPlan, run: str, program: Sequence[str] = (), slurm_job: str = "") -> Launch:
    """Return the launch of a planned run.

    Args:
        run: the run's id.
        program: arguments of the stack's Python for each rank; if empty, the ranks train.
        slurm_job: id of the Slurm job whose nodes are the hosts; "" without Slurm.
    """
    folder = run_dir(plan, run)
    several = len(plan.hosts) > 1
    ssh_config = f"{plan.prefix}/mesh/ssh_config" if several and not slurm_job else ""
    return Launch(
        run_dir=folder,
        program=tuple(program) or ("-m", "ftcluster_train.engine.rank", folder),
        env=all_rank_variables(plan, run, ssh_config, slurm_job),
        hosts=tuple(launch_host(plan, host) for host in plan.hosts),
        ssh_config=ssh_config,
        stack=stack_link(plan),
        idle=tuple(launch_host(plan, host) for host in plan.spares),
        spares=len(plan.spares),
        slurm_job=slurm_job,
    )


def launch_host(plan: LaunchPlan, host: HostPlan) -> RankHost:
    """Return the part of a launch for one host, with its ranks."""
    return RankHost(
        host.name,
        host.address,
        tuple(RankCores(rank.cpus, rank.threads, tuple(rank.memory)) for rank in host.placement),
        # relative paths, because a run keeps using the stack that was active at its start
        tuple(library.removeprefix(f"{stack_link(plan)}/") for library in host.preload),
        host_variables(plan, host),
    )


def as_shell(launch: Launch, plan: LaunchPlan, job: Mapping[str, Any] | None = None) -> str:
    """Return the launch as commands to paste into a shell on the head.

    Args:
        job: content of job.json. If None, the commands do not prepare model and data.
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
            steps = ["cd /", "umask 077", f"mkdir -p {folder}", f"cat > {folder}/job.json"]
            remote = shell_word(" && ".join([*steps, *prepare]))
            ssh = f"ssh -F {shell_word(launch.ssh_config)}"
            lines.append(f"for host in {others}; do {ssh} $host {remote} < {folder}/job.json; done")
    if plan.backend == CCL:
        lines.append(f". {shell_word(launch.stack)}/lib/python3*/site-packages/{SETVARS}")
    on_head, *variables = shell_assignments(launch, prepared=job is not None)
    lines += [
        f"port=$({python} -c {shell_word(FREE_PORT)})",
        f"env {on_head} \\",
        *(f"  {assignment} \\" for assignment in variables),
        f"  {shell_line(command.argv)}",
    ]
    return "\n".join(lines)
