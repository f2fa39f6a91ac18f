"""Build the environment of a run's ranks: everything that the control node decides about it.

The functions here make `Launch.env`, which all ranks get, and `RankHost.env` of one host. Only a
host knows the rest, so the rest is added there, in this order. A later stage overrides an earlier
stage, unless it is described as only adding variables.

On the head, for mpirun (`ftcluster_train.supervisor`):

1. `rank_environment`: the variables INHERITED and INHERITED_PREFIXES of the head's environment.
2. The variables that oneCCL's scripts set (`comm.torch_backends.variables_for`).
3. `head_variables`: PATH, beginning with the stack, and MASTER_PORT, a free port of the head.
4. `Launch.env`, made here: `all_rank_variables`, then `script_variables`, then
   `with_user_variables`, which refuses what the launch sets.
5. `mpirun_command`: FTCLUSTER_PLACEMENT, which contains `RankHost.env` of every host.
6. `Launch.supervised_variables`: the timeouts, and HF_HUB_OFFLINE for a training.
7. `rank_launch`: the number of restarts, and the address for the guardians' heartbeats.

Hydra sends this to the other hosts, except the head's credentials (`without_credentials`). There
it overrides the environment of the host's SSH session.

On each host, for one rank (`ftcluster_train.rank.bind`):

8. The user's secret variables, from the file that FTCLUSTER_SECRET_ENV names.
9. `RankHost.env` of its host, OMP_NUM_THREADS by the CPUs that the host allows, and RANK,
   WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE and GROUP_RANK.
10. Unless they are set already: PYTHONUTF8 and TORCHINDUCTOR_CACHE_DIR.
11. The guardian removes its own variables and names the rank's progress file
    (`rank.guardian`); a script also gets PYTHONPATH with the startup hooks, and after a restart the
    last checkpoint (`rank.script`).
"""

from collections.abc import Iterable, Mapping

from ftcluster.errors import UsageError
from ftcluster.planning.backends import WORKERS
from ftcluster.planning.plan import HostPlan, LaunchPlan
from ftcluster.text.shell_words import shell_word
from ftcluster_common.protocol.launch import (
    ACCELERATE_CPU_VARIABLE,
    BACKEND_VARIABLE,
    CCL,
    FAST_VARIABLE,
    HUB_TOKEN_FILE,
    LAYER_VARIABLE,
    MPI_VARIABLES,
    RUN_VARIABLE,
    SECRET_ENV_FILE,
    SECRET_ENV_VARIABLE,
    TAGS_VARIABLE,
    Launch,
    head_variables,
    mesh_variables,
    mpirun_command,
    slurm_variables,
)
from ftcluster_common.protocol.network import PROVIDER_VARIABLE, network_variables


def all_rank_variables(
    plan: LaunchPlan, run: str, ssh_config: str, slurm_job: str
) -> dict[str, str]:
    """Return the variables of mpirun and every rank of a planned run.

    Args:
        run: the run's id.
        ssh_config: path of the mesh's SSH configuration; "" if Hydra does not start hosts over it.
        slurm_job: the Slurm job that has the hosts; "" for none.
    """
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
    if plan.rank_user:  # the rank's account cannot write to the stack
        env["PYTHONPYCACHEPREFIX"] = f"{plan.prefix}/cache"
    if plan.provider:
        env[PROVIDER_VARIABLE] = plan.provider
    if plan.backend == CCL:
        env["CCL_WORKER_COUNT"] = str(WORKERS)
    return env


def host_variables(plan: LaunchPlan, host: HostPlan) -> dict[str, str]:
    """Return the additional variables of the ranks of one host."""
    variables = {}
    if host.allocator:
        # the default, 1, returns free memory to the kernel, all of it whenever the heap grows
        # (PageHeap::New in gperftools), and the next step has to fault it in again
        variables["TCMALLOC_RELEASE_RATE"] = "0"
    if host.openmp:
        # the default is to poll for 200 ms after each parallel region (OpenMP run-time's manual),
        # which keeps communication threads off the cores
        variables["KMP_BLOCKTIME"] = "1"
    if host.interface:
        variables["GLOO_SOCKET_IFNAME"] = host.interface
    variables |= network_variables(plan.provider, host.network)
    if plan.backend == CCL:
        # each rank needs the workers of all ranks (oneCCL Developer Guide, Environment Variables)
        variables["CCL_WORKER_AFFINITY"] = ",".join(rank.workers for rank in host.placement)
    return variables


def script_variables(
    plan: LaunchPlan, run_dir: str, hub_token: bool, packages: str, fast: bool
) -> dict[str, str]:
    """Return the additional variables of the ranks of a user's script.

    Args:
        run_dir: the run's folder on the hosts.
        hub_token: True if the ranks have a token for the Hub.
        packages: folder of the packages of the script's own requirements; "" without any.
        fast: True if the script uses ftcluster's kernels.
    """
    variables = {
        "FTCLUSTER_PRECISION": plan.precision,
        # Accelerate and Trainer then use CPUs, RANK and WORLD_SIZE
        ACCELERATE_CPU_VARIABLE: "true",
        "PYTHONUNBUFFERED": "1",  # output appears at once, and is complete when a rank is killed
    }
    if hub_token:
        # a host's own HF_TOKEN would override the file; an empty one does not
        variables |= {"HF_TOKEN_PATH": f"{run_dir}/{HUB_TOKEN_FILE}", "HF_TOKEN": ""}
    if packages:
        variables[LAYER_VARIABLE] = packages
    if fast:
        variables[FAST_VARIABLE] = "1"
    return variables


def with_user_variables(
    launch: Launch, plain: Mapping[str, str], secret: Iterable[str], tags: str
) -> dict[str, str]:
    """Return the launch's variables with the user's variables (`--env`) and tags (`--tag`).

    Args:
        plain: the user's variables with their values.
        secret: names of the user's variables whose values are only in a file on the hosts.
        tags: tags in one line; "" without any.

    Raises:
        UsageError: the launch sets one of the variables.
    """
    names = set(secret)
    if refused := sorted(launch.env.keys() & (plain.keys() | names)):
        raise UsageError(f"--env {', '.join(refused)}: the launch sets it itself", "leave it out")
    env = {**launch.env, **plain}
    if names:
        env[SECRET_ENV_VARIABLE] = f"{launch.run_dir}/{SECRET_ENV_FILE}"
    if tags:
        env[TAGS_VARIABLE] = tags
    return env


def shell_assignments(launch: Launch, prepared: bool) -> list[str]:
    """Return arguments of env(1) that give mpirun its variables in a shell on the head.

    They are stages 3 to 6 as shell arguments; the shell variable `port` is the rendezvous port.

    Args:
        prepared: True if model and data are on the hosts.
    """
    on_head = head_variables(shell_word(launch.stack), "$PATH", "$port")
    variables = mpirun_command(launch).env | (launch.supervised_variables if prepared else {})
    return [
        " ".join(f"{key}={value}" for key, value in on_head.items()),
        *(f"{key}={shell_word(value)}" for key, value in sorted(variables.items())),
    ]
