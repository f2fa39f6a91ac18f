"""From a LaunchPlan to the files and the command that start it. Pure functions only."""

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from ftcluster.planning import oneccl
from ftcluster.planning.plan import HostPlan, LaunchPlan

# what the supervisor does by itself
FREE_PORT = "from ftcluster_train.supervisor import free_port; print(free_port())"
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
        stack: the link to the stack in use, which the supervisor puts the real folder in place of.
    """

    argv: tuple[str, ...]
    env: dict[str, str]
    hostfile: str
    hosts: tuple[tuple[str, str], ...]
    ssh_config: str
    stack: str

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready data, as launch.json has it."""
        return {
            "argv": list(self.argv),
            "env": self.env,
            "hostfile": self.hostfile,
            "hosts": [{"name": name, "address": address} for name, address in self.hosts],
            "ssh_config": self.ssh_config,
            "stack": self.stack,
        }


def stack_link(plan: LaunchPlan) -> str:
    """The link to the stack in use, the same on every host."""
    return f"{plan.prefix}/current"


def stack_bin(plan: LaunchPlan) -> str:
    """The folder with the stack's programs, by the link."""
    return f"{stack_link(plan)}/bin"


def run_dir(plan: LaunchPlan, run: str) -> str:
    """The run's folder on the head."""
    return f"{plan.prefix}/runs/{run}"


def render(
    plan: LaunchPlan, run: str, program: Sequence[str] = (), labels: Sequence[str] = ("-l",)
) -> Launch:
    """The one mpirun of a run.

    Args:
        plan: who runs where.
        run: the run's id.
        program: what each rank becomes once it is bound; left out, the stack's Python with
            `ftcluster_train.rank`.
        labels: options of mpirun that mark the lines of each rank.
    """
    bin_dir, folder = stack_bin(plan), run_dir(plan, run)
    python = f"{bin_dir}/python"
    env = {
        "FTCLUSTER_RUN": run,
        "FTCLUSTER_BACKEND": plan.backend,
        "FTCLUSTER_PLACEMENT": placement_text(plan),
        "MASTER_ADDR": plan.master_address,
        "I_MPI_PIN": "0",  # ftcluster_train.bind does it, on each host by that host's own plan
        "I_MPI_PORT_RANGE": "29600:29799",  # within what the firewall guards
        "TOKENIZERS_PARALLELISM": "false",  # each rank has its own cores; no pool across them
    }
    if plan.rank_user:  # the stack is not the account's to write
        env["PYTHONPYCACHEPREFIX"] = f"{plan.prefix}/cache"
    if plan.backend == oneccl.BACKEND:
        env |= oneccl.variables()
    if len(plan.hosts) > 1:
        env |= _mesh(plan)
    argv = (
        f"{bin_dir}/mpirun",
        "-machinefile", f"{folder}/hostfile",  # -f fills the first host, whatever its count says
        "-n", str(plan.world_size),
        *labels,
        python, "-m", "ftcluster_train.bind",
        *(program or (python, "-m", "ftcluster_train.rank", folder)),
    )  # fmt: skip
    hostfile = "".join(f"{host.address}:{host.ranks}\n" for host in plan.hosts)
    hosts = tuple((host.name, host.address) for host in plan.hosts)
    ssh_config = _ssh_config(plan) if len(hosts) > 1 else ""
    return Launch(
        argv=argv, env=env, hostfile=hostfile, hosts=hosts, ssh_config=ssh_config,
        stack=stack_link(plan),
    )  # fmt: skip


def placement_text(plan: LaunchPlan) -> str:
    """What every rank gets, as `ftcluster_train.bind` reads it on the hosts.

    Each kind of host stands there once, because a variable has a limit (128 KiB, MAX_ARG_STRLEN):

        {"kinds": [{"env": {"LD_PRELOAD": "/usr/lib/..."}, "ranks":
            [{"cpus": "0-31", "threads": 31, "memory": [0]}, ...]}, ...],
         "hosts": [[0, 7], [1, 1]]}

    says that seven hosts of the first kind come before one of the second.
    """
    kinds: list[dict[str, Any]] = []
    hosts: list[list[int]] = []
    for host in plan.hosts:
        kind = {
            "env": _host_variables(plan, host),
            "ranks": [
                {"cpus": rank.cpus, "threads": rank.threads, "memory": list(rank.memory)}
                for rank in host.placement
            ],
        }
        if kind not in kinds:
            kinds.append(kind)
        index = kinds.index(kind)
        if hosts and hosts[-1][0] == index:
            hosts[-1][1] += 1
        else:
            hosts.append([index, 1])
    return json.dumps({"kinds": kinds, "hosts": hosts}, separators=(",", ":"))


def _host_variables(plan: LaunchPlan, host: HostPlan) -> dict[str, str]:
    """What the ranks of one host need and those of another may not."""
    variables = {}
    if host.preload:
        variables["LD_PRELOAD"] = ":".join(host.preload)
    if host.openmp:
        # else its threads poll for 200 ms after each product (OpenMP run-time's manual), and keep
        # what communicates from the cores
        variables["KMP_BLOCKTIME"] = "1"
    if host.interface:
        variables["GLOO_SOCKET_IFNAME"] = host.interface
        if len(plan.hosts) > 1:
            variables["FI_TCP_IFACE"] = host.interface  # libfabric's, fi_tcp(7)
    if plan.backend == oneccl.BACKEND:
        variables |= oneccl.host_variables([rank.workers for rank in host.placement])
    return variables


def _ssh_config(plan: LaunchPlan) -> str:
    return f"{plan.prefix}/mesh/ssh_config"


def _mesh(plan: LaunchPlan) -> dict[str, str]:
    """What makes Hydra start other hosts over the mesh (Intel MPI's manual, Hydra variables)."""
    variables = {
        "I_MPI_HYDRA_BOOTSTRAP": "ssh",
        "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS": f"-F {_ssh_config(plan)}",
        # the head starts every host itself: no other host has the key
        "I_MPI_HYDRA_BRANCH_COUNT": "4096",
    }
    if plan.interface:
        # else Hydra tells the hosts to call back at the head's name, which they may not know
        variables["I_MPI_HYDRA_IFACE"] = plan.interface
    return variables


def as_shell(
    launch: Launch, plan: LaunchPlan, job: Mapping[str, Any] | None = None, fetch: bool = True
) -> str:
    """The launch as a person would paste it into a shell on the head.

    Args:
        launch: what runs.
        plan: what it was made from.
        job: what job.json shall hold; left out, nothing is prepared for the ranks.
        fetch: whether each host fetches what the job names, as a training needs it.
    """
    folder = shlex.quote(str(PurePosixPath(_hostfile(launch)).parent))
    python = shlex.quote(f"{stack_bin(plan)}/python")
    user = f", as the user {plan.rank_user}" if plan.rank_user else ""
    lines = [
        f"# on {plan.hosts[0].name}{user}",
        *(["umask 077"] if job is not None else []),
        f"mkdir -p {folder}",
        f"printf %s {shlex.quote(launch.hostfile)} > {shlex.quote(_hostfile(launch))}",
    ]
    if job is not None:
        prepare = [f"{python} -m ftcluster_train.prepare {folder}"] if fetch else []
        lines += [
            f"printf %s {shlex.quote(json.dumps(job))} > {folder}/job.json",
            *prepare,
        ]
        others = " ".join(shlex.quote(address) for _, address in launch.hosts[1:])
        if others:
            here = ["umask 077", f"mkdir -p {folder}", f"cat > {folder}/job.json", *prepare]
            there = shlex.quote(" && ".join(here))
            ssh = f"ssh -F {shlex.quote(launch.ssh_config)}"
            lines.append(f"for host in {others}; do {ssh} $host {there} < {folder}/job.json; done")
    if plan.backend == oneccl.BACKEND:  # the supervisor sources it by itself
        lines.append(f". {shlex.quote(stack_link(plan))}/lib/python3*/site-packages/{SETVARS}")
    fetched = {"HF_HUB_OFFLINE": "1"} if job is not None and fetch else {}
    variables = sorted({**launch.env, **fetched}.items())
    lines += [
        f"port=$({python} -c {shlex.quote(FREE_PORT)})",
        f"env PATH={shlex.quote(stack_bin(plan))}:$PATH MASTER_PORT=$port \\",
        *(f"  {key}={shlex.quote(value)} \\" for key, value in variables),
        f"  {shlex.join(launch.argv)}",
    ]
    return "\n".join(lines)


def _hostfile(launch: Launch) -> str:
    return launch.argv[launch.argv.index("-machinefile") + 1]
