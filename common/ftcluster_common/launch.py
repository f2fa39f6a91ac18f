"""launch.json in a run's folder, and the variables of a launch. Standard library only.

Variables of Hydra and Intel MPI: Intel MPI Developer Reference, Hydra Environment Variables.
"""

import itertools
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ftcluster_common.given_files import read_form
from ftcluster_common.timeouts import DEFAULT_SECONDS, TIMEOUT_VARIABLE, Timeouts

# TCP ports: all that the role firewall closes besides the local ones; torch's rendezvous; mpirun
# and its ranks. The last two are for the cluster's account only, so they do not have the ports that
# torch and accelerate take by default for other local users.
CLUSTER_PORTS = range(29500, 30000)
RENDEZVOUS_PORTS = range(29550, 29600)
MPI_PORTS = range(29600, 29800)

RUN_VARIABLE = "FTCLUSTER_RUN"  # the run's id, by which its processes are known
RESTART_VARIABLE = "FTCLUSTER_RESTART"  # how often the ranks were started again
CHECKPOINT_VARIABLE = "FTCLUSTER_CHECKPOINT"  # from which a restarted script may resume
BACKEND_VARIABLE = "FTCLUSTER_BACKEND"  # of torch.distributed
PLACEMENT_VARIABLE = "FTCLUSTER_PLACEMENT"  # see ftcluster.launch.mpirun.placement_text
SLURM_VARIABLE = "SLURM_JOB_ID"  # Slurm's own
LAYER_VARIABLE = "FTCLUSTER_LAYER"  # the folder with a script's own packages
FAST_VARIABLE = "FTCLUSTER_FAST"  # whether a script is trained with our kernels
GRACE_SECONDS = 30.0  # for the last checkpoint of a training that is asked to stop
GLOO, IMPI = "gloo", "impi"  # torch's own, and that of ftcluster_train.mpi
CCL = "ccl"  # the backend of oneccl_bind_pt
MPI = "mpi"  # MPI_Allreduce itself, where it is measured beside backends

# in the run's folder on each host: what a guardian proves to the supervisor that it is one
GUARD_FILE = "guard"
LAUNCH_FILE = "launch.json"
HUB_TOKEN_FILE = "hub_token"  # in the run's folder, while its ranks are running
# srun(1): beside the job's own script, with all of the job's CPUs
SRUN_OPTIONS = "--overlap --cpu-bind=none"
# ftcluster sets the ranks' affinity by itself
MPI_VARIABLES = {
    "I_MPI_PIN": "0",
    "I_MPI_PORT_RANGE": f"{MPI_PORTS.start}:{MPI_PORTS.stop - 1}",
}


def mesh_variables(ssh_config: str, interface: str) -> dict[str, str]:
    """Variables that make Hydra start other hosts over the mesh.

    Args:
        interface: the head's network interface, or "". Without it Hydra gives the hosts the head's
            name to call back, which they may not be able to resolve.
    """
    if not ssh_config:
        return {}
    variables = {
        "I_MPI_HYDRA_BOOTSTRAP": "ssh",
        "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS": f"-F {ssh_config}",
        # the head starts every host itself: no other host has the key
        "I_MPI_HYDRA_BRANCH_COUNT": "4096",
    }
    return {**variables, **({"I_MPI_HYDRA_IFACE": interface} if interface else {})}


def slurm_variables(job: str, interface: str) -> dict[str, str]:
    """Variables that make Hydra start the hosts of a Slurm job by srun; none where `job` is "".

    Args:
        interface: as for `mesh_variables`.
    """
    if not job:
        return {}
    variables = {
        SLURM_VARIABLE: job,
        "I_MPI_HYDRA_BOOTSTRAP": "slurm",
        "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS": SRUN_OPTIONS,
    }
    return {**variables, **({"I_MPI_HYDRA_IFACE": interface} if interface else {})}


def head_variables(stack: str, path: str, port: str) -> dict[str, str]:
    """What the head adds to a launch's variables.

    Args:
        stack: the stack's folder; mpirun finds its own programs on PATH.
    """
    return {"PATH": f"{stack}/bin{os.pathsep}{path}", "MASTER_PORT": port}


def own_rank(environ: Mapping[str, str]) -> int:
    """The rank of this process: `bind` and torchrun set RANK, Hydra sets PMI_RANK.

    Raises:
        KeyError: neither is set.
    """
    return int(environ["RANK"] if "RANK" in environ else environ["PMI_RANK"])


def own_size(environ: Mapping[str, str]) -> int:
    """The number of ranks, from the same sources.

    Raises:
        KeyError: it is not set.
    """
    return int(environ["WORLD_SIZE"] if "WORLD_SIZE" in environ else environ["PMI_SIZE"])


def label_pattern(run: str) -> str:
    """mpirun's -prepend-pattern, which labels the output of the ranks: %r is the rank."""
    return f"[{run} %r] "


@dataclass(frozen=True)
class Host:
    """One host of a cluster.

    Attributes:
        name: the inventory's name.
        address: the address that the head reaches it by.
    """

    name: str
    address: str


def grouped(kinds: Iterable[int]) -> list[list[int]]:
    """Kinds of hosts in a placement, with the number of hosts in a row that are of each."""
    return [[kind, len(list(same))] for kind, same in itertools.groupby(kinds)]


def hostfile_of(hosts: Sequence[Host], counts: Sequence[int], by_name: bool = False) -> str:
    """The text of a hostfile, given the number of ranks of each host.

    Args:
        by_name: whether mpirun is to know the hosts by name, as srun does.
    """
    pairs = zip(hosts, counts, strict=True)
    return "".join(f"{one.name if by_name else one.address}:{count}\n" for one, count in pairs)


@dataclass(frozen=True)
class Launch:
    """What the supervisor on the head starts.

    Attributes:
        argv: mpirun's command line; no shell is involved.
        hosts: those with ranks, the head first.
        stack: the link to the stack in use, or the stack's folder.
        script_ranks: number of ranks where they run a user's script; None for a training.
        restarts: how often the ranks have been started again so far.
        max_restarts: how often the ranks are started again after a failure that is not theirs.
        idle: hosts that are prepared but have no ranks: spares, and those that a restart left out.
        spares: how many hosts have no ranks when all of them answer.
        min_nodes: a restart leaves out hosts that are lost while this many are left; 0: it waits.
        wait: whether it waits for other runs that use its hosts; else it is refused.
        share_hosts: whether it starts on hosts that other runs use.
        timeout_seconds: see Timeouts.
        hang_seconds: how long no rank may do anything; 0: for ever; None: timeout_seconds.
        slurm_job: the Slurm job that has the hosts, which share the run's folder; "" for none.
        grace_seconds: for the step that the ranks are in and its checkpoint, once they are asked
            to stop.
        started_by: who started it, such as `ops on bastion`.
    """

    run_dir: str
    argv: tuple[str, ...]
    env: dict[str, str]
    hostfile: str
    hosts: tuple[Host, ...]
    ssh_config: str
    stack: str
    script_ranks: int | None = None
    restarts: int = 0
    max_restarts: int = 0
    idle: tuple[Host, ...] = ()
    spares: int = 0
    min_nodes: int = 0
    wait: bool = False
    share_hosts: bool = False
    timeout_seconds: float = DEFAULT_SECONDS
    hang_seconds: float | None = None
    slurm_job: str = ""
    grace_seconds: float = GRACE_SECONDS
    started_by: str = ""

    @property
    def run(self) -> str:
        """The run's id."""
        return Path(self.run_dir).name

    @property
    def hostfile_path(self) -> str:
        """Where mpirun finds the hostfile."""
        return f"{self.run_dir}/hostfile"

    @property
    def variables(self) -> dict[str, str]:
        """`env`, and that a training finds model and data on its host, where `prepare` put them."""
        offline = {"HF_HUB_OFFLINE": "1"} if self.script_ranks is None else {}
        return {**self.env, TIMEOUT_VARIABLE: f"{self.timeout_seconds:g}", **offline}

    @property
    def timeouts(self) -> Timeouts:
        """How long something is waited for."""
        return Timeouts(self.timeout_seconds)

    @property
    def nodes(self) -> int:
        """How many hosts have ranks when all of them answer."""
        return len(self.hosts) + len(self.idle) - self.spares

    @property
    def rank_hosts(self) -> list[Host]:
        """The host of each rank, by the hostfile's lines, which are in the order of `hosts`."""
        counts = [int(line.rpartition(":")[2]) for line in self.hostfile.split()]
        pairs = zip(self.hosts, counts, strict=True)
        return [host for host, count in pairs for _ in range(count)]

    def on(self, hosts: Sequence[Host]) -> "Launch":
        """The same launch with ranks on these of `hosts` and `idle`, the head first."""
        placement = json.loads(self.env[PLACEMENT_VARIABLE])
        order = [*placement.get("idle", []), *placement["hosts"]]
        kinds = [kind for kind, count in order for _ in range(count)]
        kind_of = dict(zip((*self.idle, *self.hosts), kinds, strict=True))
        idle = [host for host in kind_of if host not in hosts]
        for key, some in (("hosts", hosts), ("idle", idle)):
            placement[key] = grouped(kind_of[host] for host in some)
        counts = [len(placement["kinds"][kind_of[host]]["ranks"]) for host in hosts]
        at = self.argv.index("-n") + 1
        assert self.argv[at] == str(len(self.rank_hosts))
        return replace(
            self,
            argv=(*self.argv[:at], str(sum(counts)), *self.argv[at + 1 :]),
            env={**self.env, PLACEMENT_VARIABLE: json.dumps(placement, separators=(",", ":"))},
            hostfile=hostfile_of(hosts, counts, bool(self.slurm_job)),
            hosts=tuple(hosts),
            idle=tuple(idle),
            script_ranks=None if self.script_ranks is None else sum(counts),
        )

    def with_stack(self, folder: Path) -> "Launch":
        """The same launch by the stack's folder, because the link may be moved during the run."""
        link, real = f"{self.stack}/", f"{folder}/"
        return replace(
            self,
            argv=tuple(
                word.replace(link, real, 1) if word.startswith(link) else word for word in self.argv
            ),
            env={name: value.replace(link, real) for name, value in self.env.items()},
            stack=str(folder),
        )

    def shown(self) -> dict[str, Any]:
        """What `--json` shows of it."""
        return {
            "argv": list(self.argv),
            "env": self.env,
            "hostfile": self.hostfile,
            "hosts": [vars(host) for host in self.hosts],
            "ssh_config": self.ssh_config,
            "stack": self.stack,
        }

    def to_dict(self) -> dict[str, Any]:
        """The content of launch.json, which `read_launch` reads."""
        data = {**asdict(self), **self.shown()}
        del data["run_dir"]
        return data


def read_launch(run_dir: Path) -> Launch:
    """Read `run_dir`/launch.json.

    Raises:
        GivenFileError: it is missing or damaged.
    """

    def launch(data: Any) -> Launch:
        lists: dict[str, Any] = {
            key: tuple(Host(**host) for host in data.pop(key)) for key in ("hosts", "idle")
        }
        return Launch(run_dir=str(run_dir), argv=tuple(data.pop("argv")), **lists, **data)

    return read_form(run_dir / LAUNCH_FILE, launch)
