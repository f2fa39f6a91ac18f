"""Build the environment variables of a run's ranks that the control node decides.

The functions here make `Launch.env` for all ranks, and `RankHost.env` for the ranks of one host.
The hosts add the other variables. The complete environment results from the stages below, in this
order. A later stage overrides an earlier stage, unless it is described as only adding variables.

On the head, for mpirun (`ftcluster_train.supervisor`):

1. `rank_environment`: the variables INHERITED and INHERITED_PREFIXES of the head's environment.
2. The variables that oneCCL's scripts set (`comm.torch_backends.variables_for`).
3. `head_variables`: PATH, which begins with the stack, and MASTER_PORT, a free port of the head.
4. `Launch.env`, made here: `all_rank_variables`, then `script_variables`, then
   `with_user_variables`, which refuses variables that the launch sets itself.
5. `mpirun_command`: FTCLUSTER_PLACEMENT, which contains `RankHost.env` of every host.
6. `Launch.supervised_variables`: the timeouts, and HF_HUB_OFFLINE for a training.
7. `rank_launch`: the number of restarts, and the address for the guardians' heartbeats.

Hydra sends this environment to the other hosts, except the head's credentials
(`without_credentials`). On these hosts, it overrides the environment of the SSH session.

On each host, for one rank (`ftcluster_train.rank.bind`):

8. The user's secret variables, from the file that FTCLUSTER_SECRET_ENV names.
9. `RankHost.env` of the rank's host, OMP_NUM_THREADS for the CPUs that the host allows, and RANK,
   WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE and GROUP_RANK.
10. PYTHONUTF8 and TORCHINDUCTOR_CACHE_DIR, unless they are set already.
11. The guardian removes its own variables and names the rank's progress file
    (`rank.guardian`). A script also gets PYTHONPATH with the startup hooks and, after a restart,
    the path of the last checkpoint (`rank.script`).
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
        ssh_config: path of the mesh's SSH configuration; "" if Hydra does not use SSH.
        slurm_job: id of the Slurm job whose nodes are the hosts; "" without Slurm.
    """
    env = {
        RUN_VARIABLE: run,
        BACKEND_VARIABLE: plan.backend,
        "MASTER_ADDR": plan.hosts[0].address,  # the head chooses the port at the launch
        **MPI_VARIABLES,
        "TOKENIZERS_PARALLELISM": "false",  # a pool would use other ranks' cores
        # torch requests huge pages for tensors of at least 2 MiB. The kernel grants the request if
        # transparent huge pages are set to `madvise`: one page fault replaces 512
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
        # with the default rate of 1, tcmalloc returns all free memory to the kernel whenever the
        # heap grows (PageHeap::New in gperftools). The next step would have to fault it in again
        variables["TCMALLOC_RELEASE_RATE"] = "0"
    if host.openmp:
        # by default, threads poll for 200 ms after each parallel region (manual of the OpenMP
        # runtime), which keeps communication threads from running on these cores
        variables["KMP_BLOCKTIME"] = "1"
    if host.interface:
        variables["GLOO_SOCKET_IFNAME"] = host.interface
    variables |= network_variables(plan.provider, host.network)
    if plan.backend == CCL:
        # each rank needs the worker CPUs of all the host's ranks (oneCCL Developer Guide,
        # Environment Variables)
        variables["CCL_WORKER_AFFINITY"] = ",".join(rank.workers for rank in host.placement)
    return variables


def script_variables(
    plan: LaunchPlan, run_dir: str, hub_token: bool, packages: str, fast: bool
) -> dict[str, str]:
    """Return the additional variables of the ranks of a user's script.

    Args:
        run_dir: the run's folder on the hosts.
        hub_token: True if the ranks get a token for the Hub.
        packages: folder on the hosts with the packages of --requirements; "" for none.
        fast: True if the script uses ftcluster's kernels.
    """
    variables = {
        "FTCLUSTER_PRECISION": plan.precision,
        # makes Accelerate and Trainer use CPUs, RANK and WORLD_SIZE
        ACCELERATE_CPU_VARIABLE: "true",
        "PYTHONUNBUFFERED": "1",  # output appears at once, and is complete when a rank is killed
    }
    if hub_token:
        # a host's own HF_TOKEN would override the file; an empty HF_TOKEN does not
        variables |= {"HF_TOKEN_PATH": f"{run_dir}/{HUB_TOKEN_FILE}", "HF_TOKEN": ""}
    if packages:
        variables[LAYER_VARIABLE] = packages
    if fast:
        variables[FAST_VARIABLE] = "1"
    return variables


def with_user_variables(
    launch: Launch, plain: Mapping[str, str], secret: Iterable[str], tags: str
) -> dict[str, str]:
    """Return the launch's variables, plus the user's variables (`--env`) and tags (`--tag`).

    Args:
        launch: the launch before this change.
        plain: values of the user's plain variables, by name.
        secret: names of the user's secret variables; their values are only in a file on the hosts.
        tags: tags on one line; "" without tags.

    Raises:
        UsageError: the launch sets one of the variables.
    """
    names = set(secret)
    if refused := sorted(launch.env.keys() & (plain.keys() | names)):
        raise UsageError(
            f"--env {', '.join(refused)}: every launch sets this variable", "remove the option"
        )
    env = {**launch.env, **plain}
    if names:
        env[SECRET_ENV_VARIABLE] = f"{launch.run_dir}/{SECRET_ENV_FILE}"
    if tags:
        env[TAGS_VARIABLE] = tags
    return env


def shell_assignments(launch: Launch, prepared: bool) -> list[str]:
    """Return arguments of env(1) that set mpirun's variables in a shell on the head.

    The arguments set the variables of stages 3 to 6. The shell variable `port` must contain the
    rendezvous port.

    Args:
        prepared: True if model and data are on the hosts.
    """
    on_head = head_variables(shell_word(launch.stack), "$PATH", "$port")
    variables = mpirun_command(launch).env | (launch.supervised_variables if prepared else {})
    return [
        " ".join(f"{key}={value}" for key, value in on_head.items()),
        *(f"{key}={shell_word(value)}" for key, value in sorted(variables.items())),
    ]
