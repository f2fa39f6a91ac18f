"""From a LaunchPlan to the files and the command that start it. Pure functions only."""

import shlex
from dataclasses import dataclass
from typing import Any

from ftcluster import oneccl
from ftcluster.plan import LaunchPlan

SETVARS = "oneccl_bindings_for_pytorch/env/setvars.sh"  # what oneccl_bind_pt's libraries need


@dataclass(frozen=True)
class Launch:
    """What the supervisor on the head starts.

    Attributes:
        argv: mpirun's command line; no shell is involved.
        env: variables set for mpirun and every rank.
        hostfile: the text of the hostfile.
        hosts: name and address of each host, the head first.
        ssh_config: the mesh's SSH configuration on the head, or "" for one host.
    """

    argv: tuple[str, ...]
    env: dict[str, str]
    hostfile: str
    hosts: tuple[tuple[str, str], ...]
    ssh_config: str

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready data, as launch.json has it."""
        return {
            "argv": list(self.argv),
            "env": self.env,
            "hostfile": self.hostfile,
            "hosts": [{"name": name, "address": address} for name, address in self.hosts],
            "ssh_config": self.ssh_config,
        }


def stack_bin(plan: LaunchPlan) -> str:
    """The folder with the stack's programs, the same on every host."""
    return f"{plan.prefix}/current/bin"


def run_dir(plan: LaunchPlan, run: str) -> str:
    """The run's folder on the head."""
    return f"{plan.prefix}/runs/{run}"


def render(plan: LaunchPlan, run: str) -> Launch:
    """The one mpirun of a run.

    Args:
        plan: who runs where.
        run: the run's id.
    """
    bin_dir, folder = stack_bin(plan), run_dir(plan, run)
    threads = min(host.threads_per_rank for host in plan.hosts)
    env = {
        "FTCLUSTER_RUN": run,
        "FTCLUSTER_BACKEND": plan.backend,
        "MASTER_ADDR": plan.master_address,
        "OMP_NUM_THREADS": str(threads),
        # one domain of OMP_NUM_THREADS cores a rank (Intel MPI's manual, Process Pinning)
        "I_MPI_PIN_DOMAIN": "omp",
        "TOKENIZERS_PARALLELISM": "false",  # each rank has its own cores; no pool across them
        "PYTHONPYCACHEPREFIX": f"{plan.prefix}/cache",  # the stack is not the ranks' to write
    }
    if plan.split:
        env |= oneccl.variables(plan.split)
    if len(plan.hosts) > 1:
        env |= _mesh(plan)
    shared = set.intersection(*(set(host.preload) for host in plan.hosts))
    if shared:
        env["LD_PRELOAD"] = ":".join(sorted(shared))
    argv = (
        f"{bin_dir}/mpirun",
        "-machinefile", f"{folder}/hostfile",  # -f fills the first host, whatever its count says
        "-n", str(plan.world_size),
        "-l",
        f"{bin_dir}/python", "-m", "ftcluster_train.rank", folder,
    )  # fmt: skip
    hostfile = "".join(f"{host.address}:{host.ranks}\n" for host in plan.hosts)
    hosts = tuple((host.name, host.address) for host in plan.hosts)
    ssh_config = _ssh_config(plan) if len(hosts) > 1 else ""
    return Launch(argv=argv, env=env, hostfile=hostfile, hosts=hosts, ssh_config=ssh_config)


def _ssh_config(plan: LaunchPlan) -> str:
    return f"{plan.prefix}/mesh/ssh_config"


def _mesh(plan: LaunchPlan) -> dict[str, str]:
    """What makes Hydra start other hosts over the mesh (Intel MPI's manual, Hydra variables)."""
    variables = {
        "I_MPI_HYDRA_BOOTSTRAP": "ssh",
        "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS": f"-F {_ssh_config(plan)}",
        # the head starts every host itself: no other host has the key
        "I_MPI_HYDRA_BRANCH_COUNT": "4096",
        "I_MPI_PORT_RANGE": "29600:29799",  # within what the firewall opens
    }
    if plan.interface:
        # else Hydra tells the hosts to call back at the head's name, which they may not know
        variables["I_MPI_HYDRA_IFACE"] = plan.interface
    return variables


def as_shell(launch: Launch, plan: LaunchPlan) -> str:
    """The launch as a person would paste it into a shell on the head."""
    bin_dir = stack_bin(plan)
    hostfile_path = launch.argv[launch.argv.index("-machinefile") + 1]
    variables = [f"{key}={shlex.quote(value)}" for key, value in sorted(launch.env.items())]
    # the supervisor sources it by itself
    setvars = f"{shlex.quote(plan.prefix)}/current/lib/python3*/site-packages/{SETVARS}"
    lines = [
        *([f". {setvars}"] if plan.backend == "ccl" else []),
        f"printf %s {shlex.quote(launch.hostfile)} > {shlex.quote(hostfile_path)}",
        f"env PATH={shlex.quote(bin_dir)}:$PATH \\",
        *(f"  {variable} \\" for variable in variables),
        f"  {shlex.join(launch.argv)}",
    ]
    return "\n".join(lines)
