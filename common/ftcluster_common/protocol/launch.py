"""The format of launch.json in a run's folder, and the environment variables of a launch.

Standard library only. Source for the variables of Hydra and Intel MPI: Intel MPI Developer
Reference, Hydra Environment Variables.
"""

import base64
import itertools
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from ftcluster_common.given_files import GivenFileError, read_form
from ftcluster_common.protocol.formats import LAUNCH, opened, stamped
from ftcluster_common.protocol.timeouts import DEFAULT_SECONDS, TIMEOUT_VARIABLE, Timeouts

# TCP ports, in this order: all ports that the role firewall closes (apart from the kernel's local
# ports), torch's rendezvous, and mpirun with its ranks. The last two ranges are only for the
# cluster's account. They do not include the default ports of torch and accelerate, which other
# local users may use.
CLUSTER_PORTS = range(29500, 30000)
RENDEZVOUS_PORTS = range(29550, 29600)
MPI_PORTS = range(29600, 29800)

RUN_VARIABLE = "FTCLUSTER_RUN"  # the run's id, which identifies its processes
RESTART_VARIABLE = "FTCLUSTER_RESTART"  # number of restarts of the ranks so far
CHECKPOINT_VARIABLE = "FTCLUSTER_CHECKPOINT"  # checkpoint that a restarted script may resume from
BACKEND_VARIABLE = "FTCLUSTER_BACKEND"  # read by torch.distributed
ACCELERATE_CPU_VARIABLE = "ACCELERATE_USE_CPU"  # read by Accelerate
PLACEMENT_VARIABLE = "FTCLUSTER_PLACEMENT"  # see `rank_placement`
SLURM_VARIABLE = "SLURM_JOB_ID"  # set by Slurm
LAYER_VARIABLE = "FTCLUSTER_LAYER"  # folder with a script's additional packages
TAGS_VARIABLE = "FTCLUSTER_TAGS"  # tags of the run, such as `team=nlp ticket=42`
STOPPED_BY_VARIABLE = "FTCLUSTER_STOPPED_BY"  # user and machine of `ftcluster stop`
FAST_VARIABLE = "FTCLUSTER_FAST"  # set if a script is trained with our kernels
MOST_SECONDS = 7 * 86400.0  # limit for grace_seconds; launch.json may be damaged
GRACE_SECONDS = 30.0  # time for the last checkpoint of a training run that must stop
GLOO, IMPI = "gloo", "impi"  # torch's own backend, and the backend of ftcluster_train.mpi
CCL = "ccl"  # backend of oneccl_bind_pt
MPI = "mpi"  # MPI_Allreduce itself, for comparison with backends

# file in the run's folder on each host with the secret that a guardian sends to the supervisor
GUARD_FILE = "guard"
LAUNCH_FILE = "launch.json"
PLANNED_FILE = "planned.json"  # name of launch.json until model and data are complete
HUB_TOKEN_FILE = "hub_token"  # file in the run's folder while its ranks are running
SECRET_ENV_FILE = "secret_env"  # file there with secret environment variables, see `pack_env`
WEBHOOK_FILE = "webhook"  # file on the head during a run, with the address of --webhook
SECRET_ENV_VARIABLE = "FTCLUSTER_SECRET_ENV"  # path of this file, for the ranks
# matches the names of variables that hold credentials
CREDENTIAL = re.compile("TOKEN(?!_PATH)|PASSWORD|SECRET|KEY")
# srun(1): run beside the job's script, with all CPUs of the job
SRUN_OPTIONS = "--overlap --cpu-bind=none"
# ftcluster sets the ranks' affinity itself
MPI_VARIABLES = {
    "I_MPI_PIN": "0",
    "I_MPI_PORT_RANGE": f"{MPI_PORTS.start}:{MPI_PORTS.stop - 1}",
}


def may_hold_credentials(name: str, value: str) -> bool:
    """Return True if a variable may hold a credential.

    A variable may hold a credential if its name contains a word like TOKEN, or if its value is a
    URL with user information, a query or a fragment. The URL of a proxy needs no scheme.

    >>> may_hold_credentials("MLFLOW_TRACKING_URI", "https://me:secret@tracking/")
    True
    >>> may_hold_credentials("HF_ENDPOINT", "https://mirror.site/hub")
    False
    """
    if CREDENTIAL.search(name):
        return True
    is_url = "://" in value or name.lower().endswith("_proxy")
    return is_url and any(mark in value for mark in "@?#")


def mesh_variables(ssh_config: str, interface: str) -> dict[str, str]:
    """Return the variables that make Hydra start other hosts over the mesh.

    Args:
        interface: the head's network interface, or "". Without an interface the other hosts connect
            to the head by its name, which they may not be able to resolve.
    """
    if not ssh_config:
        return {}
    variables = {
        "I_MPI_HYDRA_BOOTSTRAP": "ssh",
        "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS": f"-F {ssh_config}",
        # the head starts every host itself, because no other host has the SSH key
        "I_MPI_HYDRA_BRANCH_COUNT": "4096",
    }
    return {**variables, **({"I_MPI_HYDRA_IFACE": interface} if interface else {})}


def slurm_variables(job: str, interface: str) -> dict[str, str]:
    """Return the variables that make Hydra start a Slurm job's hosts with srun; {} without a job.

    Args:
        interface: the head's network interface, see `mesh_variables`.
    """
    if not job:
        return {}
    variables = {
        SLURM_VARIABLE: job,
        "I_MPI_HYDRA_BOOTSTRAP": "slurm",
        "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS": SRUN_OPTIONS,
    }
    return {**variables, **({"I_MPI_HYDRA_IFACE": interface} if interface else {})}


def pack_env(variables: Mapping[str, str]) -> str:
    """Return variables as one base64 argument without template characters; "" if there are none."""
    return base64.b64encode(json.dumps(variables).encode()).decode() if variables else ""


def unpack_env(text: str) -> dict[str, str]:
    """Return the variables that `pack_env` has packed.

    Raises:
        ValueError: the text is not from `pack_env`.
    """
    try:
        variables = json.loads(base64.b64decode(text, validate=True))
    except RecursionError as error:
        raise ValueError(str(error)) from None
    if not isinstance(variables, dict) or not all(
        isinstance(value, str) for value in variables.values()
    ):
        raise ValueError("not a mapping of variables")
    return variables


def head_variables(stack: str, path: str, port: str) -> dict[str, str]:
    """Return the variables that the head adds to a launch.

    Args:
        stack: the stack's folder, whose programs mpirun must find on PATH.
    """
    return {"PATH": f"{stack}/bin{os.pathsep}{path}", "MASTER_PORT": port}


def own_rank(environ: Mapping[str, str]) -> int:
    """Return the rank of this process: `bind` and torchrun set RANK, Hydra sets PMI_RANK.

    Raises:
        KeyError: neither is set.
    """
    return int(environ["RANK"] if "RANK" in environ else environ["PMI_RANK"])


def own_size(environ: Mapping[str, str]) -> int:
    """Return the number of ranks, as set by `bind`, torchrun or Hydra.

    Raises:
        KeyError: none of them has set it.
    """
    return int(environ["WORLD_SIZE"] if "WORLD_SIZE" in environ else environ["PMI_SIZE"])


def label_pattern(run: str) -> str:
    """Return mpirun's -prepend-pattern, which labels the ranks' output: %r is the rank."""
    return f"[{run} %r] "


@dataclass(frozen=True)
class RankCores:
    """The cores and memory of one rank on its host.

    Attributes:
        cpus: the kernel's list of CPUs, such as 0-31.
        threads: number of OpenMP threads.
        memory: preferred NUMA nodes; () for the kernel's default policy.
    """

    cpus: str
    threads: int
    memory: tuple[int, ...] = ()


@dataclass(frozen=True)
class Host:
    """One host of a cluster.

    Attributes:
        name: inventory name.
        address: address at which the head reaches the host.
    """

    name: str
    address: str


@dataclass(frozen=True)
class RankHost(Host):
    """One host of a launch.

    Attributes:
        ranks: cores and memory of the host's ranks, by local rank.
        preload: libraries for LD_PRELOAD; relative paths are below the stack.
        env: additional environment variables of the host's ranks.
    """

    ranks: tuple[RankCores, ...] = ()
    preload: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class Launch:
    """The run that the supervisor on the head starts; `mpirun_command` renders it.

    Attributes:
        program: arguments of the stack's Python that each rank executes after it is bound to its
            cores.
        env: environment variables of mpirun and all ranks.
        hosts: hosts with ranks, the head first.
        stack: the link to the stack in use, or the stack's folder.
        script: True if the ranks run a user's script, False if they run a job of ftcluster.
        restarts: number of restarts of the ranks so far.
        max_restarts: maximum number of restarts after failures that the ranks did not cause.
        idle: prepared hosts without ranks: spares, and hosts that a restart dropped.
        spares: number of hosts without ranks if all hosts respond.
        min_nodes: minimum number of hosts that a restart needs if it drops lost hosts; 0 makes it
            wait for lost hosts.
        wait: True to wait while other runs use the hosts, False to fail.
        share_hosts: True to start on hosts that other runs use.
        timeout_seconds: longest silence of a rank or host in seconds, see `Timeouts`.
        hang_seconds: maximum time in seconds in which no rank makes progress; 0 means no limit,
            None means timeout_seconds.
        slurm_job: id of the Slurm job whose hosts share the run's folder, or "".
        grace_seconds: seconds for the current step and its checkpoint after a request to stop.
        started_by: user and machine that started the run, such as `ops on bastion`.
        notify: arguments of the command that the head starts when the run ends or waits; () if
            there is no command.
        webhook: True if the head then also posts to the address in the file WEBHOOK_FILE.
    """

    run_dir: str
    program: tuple[str, ...]
    env: dict[str, str]
    hosts: tuple[RankHost, ...]
    ssh_config: str
    stack: str
    script: bool = False
    restarts: int = 0
    max_restarts: int = 0
    idle: tuple[RankHost, ...] = ()
    spares: int = 0
    min_nodes: int = 0
    wait: bool = False
    share_hosts: bool = False
    timeout_seconds: float = DEFAULT_SECONDS
    hang_seconds: float | None = None
    slurm_job: str = ""
    grace_seconds: float = GRACE_SECONDS
    started_by: str = ""
    notify: tuple[str, ...] = ()
    webhook: bool = False

    @property
    def run(self) -> str:
        """The run's id."""
        return Path(self.run_dir).name

    @property
    def hostfile_path(self) -> str:
        """The path of the hostfile for mpirun."""
        return f"{self.run_dir}/hostfile"

    @property
    def supervised_variables(self) -> dict[str, str]:
        """The variables of ranks whose hosts already have model and data."""
        offline = {} if self.script else {"HF_HUB_OFFLINE": "1"}
        return {TIMEOUT_VARIABLE: f"{self.timeout_seconds:g}", **offline}

    @property
    def timeouts(self) -> Timeouts:
        """The timeouts of the run."""
        return Timeouts(self.timeout_seconds)

    @property
    def nodes(self) -> int:
        """The number of hosts with ranks if all hosts respond."""
        return len(self.hosts) + len(self.idle) - self.spares

    @property
    def rank_hosts(self) -> list[RankHost]:
        """The host of each rank, by rank: ranks are numbered in the order of `hosts`."""
        return [host for host in self.hosts for _ in host.ranks]

    def on(self, hosts: Sequence[RankHost]) -> "Launch":
        """Return the launch with ranks on these hosts from `hosts` and `idle`, the head first."""
        idle = (host for host in (*self.idle, *self.hosts) if host not in hosts)
        return replace(self, hosts=tuple(hosts), idle=tuple(idle))

    def shown(self) -> dict[str, Any]:
        """The part of the launch that `--json` shows."""
        return {
            **asdict(mpirun_command(self)),
            "hosts": [{"name": host.name, "address": host.address} for host in self.hosts],
            "ssh_config": self.ssh_config,
            "stack": self.stack,
        }

    def to_dict(self) -> dict[str, Any]:
        """Return the content of launch.json, which `read_launch` reads."""
        data = asdict(self)
        del data["run_dir"]
        return stamped(LAUNCH, data)


@dataclass(frozen=True)
class MpirunCommand:
    """The command that starts the ranks of a launch; no shell is involved.

    Attributes:
        hostfile: content of the file at `Launch.hostfile_path`.
    """

    argv: tuple[str, ...]
    env: dict[str, str]
    hostfile: str


def mpirun_command(launch: Launch) -> MpirunCommand:
    """Return the command that starts a launch's ranks on its hosts."""
    python = f"{launch.stack}/bin/python"
    argv = (
        f"{launch.stack}/bin/mpirun",
        "-machinefile", launch.hostfile_path,  # -f would ignore the counts and fill the first host
        "-n", str(len(launch.rank_hosts)),
        "-prepend-pattern", label_pattern(launch.run),
        python, "-m", "ftcluster_train.host.bind",
        python, *launch.program,
    )  # fmt: skip
    placement = json.dumps(rank_placement(launch.hosts, launch.stack), separators=(",", ":"))
    lines = (
        f"{host.name if launch.slurm_job else host.address}:{len(host.ranks)}\n"  # srun needs names
        for host in launch.hosts
    )
    return MpirunCommand(argv, {**launch.env, PLACEMENT_VARIABLE: placement}, "".join(lines))


def rank_placement(hosts: Sequence[RankHost], stack: str) -> dict[str, Any]:
    """Return the placement of all ranks, which `ftcluster_train.host.bind` reads on the hosts.

    Identical hosts share an entry, because Linux limits a variable to 128 KiB (MAX_ARG_STRLEN):

        {"kinds": [{"env": {"LD_PRELOAD": "/usr/lib/..."}, "ranks":
            [{"cpus": "0-31", "threads": 31, "memory": [0]}, ...]}, ...],
         "hosts": [[0, 7], [1, 1]]}

    describes seven hosts of kind 0, followed by one host of kind 1.
    """
    kinds: list[dict[str, Any]] = []
    numbers = []
    for host in hosts:
        libraries = ":".join(str(Path(stack, library)) for library in host.preload)
        preload = {"LD_PRELOAD": libraries} if libraries else {}
        kind = {"env": {**preload, **host.env}, "ranks": [asdict(rank) for rank in host.ranks]}
        if kind not in kinds:
            kinds.append(kind)
        numbers.append(kinds.index(kind))
    in_a_row = [[kind, len(list(same))] for kind, same in itertools.groupby(numbers)]
    return {"kinds": kinds, "hosts": in_a_row}


def read_launch(run_dir: Path) -> Launch:
    """Read `run_dir`/launch.json.

    Raises:
        GivenFileError: the file is missing, damaged, or has an unsupported format.
    """

    def host(data: Any) -> RankHost:
        ranks = tuple(
            RankCores(rank["cpus"], rank["threads"], tuple(rank["memory"]))
            for rank in data.pop("ranks")
        )
        preload = tuple(os.fspath(library) for library in data.pop("preload"))
        return RankHost(ranks=ranks, preload=preload, env=dict(data.pop("env")), **data)

    def launch(document: Any) -> Launch:
        data = opened(LAUNCH, document)
        hosts: dict[str, Any] = {key: tuple(map(host, data.pop(key))) for key in ("hosts", "idle")}
        notify = tuple(map(os.fspath, data.pop("notify", ())))
        return Launch(str(run_dir), tuple(data.pop("program")), **hosts, notify=notify, **data)

    return read_form(run_dir / LAUNCH_FILE, launch)


@dataclass(frozen=True)
class LaunchOutline:
    """The part of launch.json that is needed to end a run of any version.

    Attributes:
        head: name of the first host, or "".
        slurm_job: see `Launch`.
        grace_seconds: see `Launch`.
    """

    head: str = ""
    slurm_job: str = ""
    grace_seconds: float = GRACE_SECONDS


def read_outline(run_dir: Path) -> LaunchOutline:
    """Read the outline of `run_dir`/launch.json; damaged fields get their defaults.

    Raises:
        GivenFileError: the file exists but this user may not read it.
    """
    try:
        data = read_form(run_dir / LAUNCH_FILE, dict)
    except GivenFileError as error:
        if isinstance(error.__cause__, PermissionError):
            raise
        return LaunchOutline()
    try:
        head = str(data["hosts"][0]["name"])
    except (LookupError, TypeError):
        head = ""
    job, seconds = data.get("slurm_job"), data.get("grace_seconds")
    grace = GRACE_SECONDS
    if isinstance(seconds, int | float) and 0 <= seconds < MOST_SECONDS:
        grace = float(seconds)
    return LaunchOutline(head, job if isinstance(job, str) else "", grace)
