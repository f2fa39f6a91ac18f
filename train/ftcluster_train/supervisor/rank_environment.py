"""What ranks are given: an environment without this host's secrets, and the user's own secrets.

These are a token for the Hugging Face Hub and variables, on a run's hosts while its ranks are
running, in files that only the ranks' account can read: HF_TOKEN_PATH names the one to
huggingface_hub, and each rank takes the variables of the other once it is started. mpirun does not
get them, because it sends variables over the network unencrypted; the files go to the other hosts
over the mesh's SSH. The control node's `ftcluster.launch.environment` lists all stages of the
environment, and which of them wins. Standard library only.
"""

import contextlib
import os
import pwd
import random
import shlex
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ftcluster_common.protocol.launch import (
    HUB_TOKEN_FILE,
    MPI_PORTS,
    RENDEZVOUS_PORTS,
    SECRET_ENV_FILE,
    SECRET_ENV_VARIABLE,
    Launch,
    head_variables,
    may_hold_credentials,
)
from ftcluster_train.errors import TrainError
from ftcluster_train.supervisor.heartbeats import StopRequest
from ftcluster_train.supervisor.ssh_check import HostFailure, refusals

# of the host's environment, the ranks get only what they may need
INHERITED = (
    "HOME", "LANG", "LC_ALL", "TMPDIR", "USER",
    "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE",
    "http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY",
    "all_proxy", "ALL_PROXY",
)  # fmt: skip
# mpirun starts srun in a Slurm job, which reads slurm.conf where SLURM_CONF says
INHERITED_PREFIXES = ("HF_", "MLFLOW_", "TRACKIO_", "WANDB_", "SLURM_CONF")
LISTENS = "0A"  # Linux, include/net/tcp_states.h
# by the file's name: the variable that names it to the ranks, and what it is
SECRETS = {
    HUB_TOKEN_FILE: ("HF_TOKEN_PATH", "the token for the Hub"),
    SECRET_ENV_FILE: (SECRET_ENV_VARIABLE, "the file of --env"),
}
ARRIVAL_SECONDS = 60.0
POLL_SECONDS = 0.05


def rank_environment(
    variables: Mapping[str, str],
    stack: str,
    sourced: Mapping[str, str] | None = None,
    rendezvous: socket.socket | None = None,
) -> dict[str, str]:
    """The whole environment of mpirun and its ranks.

    Args:
        variables: those of the launch; they override all others.
        sourced: what the backend's own scripts have set; their PATH comes after the stack's, so
            that mpirun and Hydra remain those of the stack.
        rendezvous: the port that is held for torch; None: one that is free now.

    Raises:
        TrainError: no port is free for torch or mpirun.
    """
    _hold(MPI_PORTS, "mpirun").close()  # which says nothing of ports
    inherited = {
        key: value
        for key, value in os.environ.items()
        if (key in INHERITED or key.startswith(INHERITED_PREFIXES))
        # for which no stack has a library: huggingface_hub would refuse to start
        and not (key.lower() == "all_proxy" and value.startswith("socks"))
    }
    sourced = sourced or {}
    path = sourced.get("PATH") or host_path()
    return {
        **inherited,
        **sourced,
        **head_variables(stack, path, str(_number(rendezvous) if rendezvous else free_port())),
        **variables,
    }


def without_credentials(
    argv: Sequence[str], environment: Mapping[str, str], variables: Mapping[str, str]
) -> list[str]:
    """mpirun's command line with options that keep this host's credentials on this host.

    Ranks of this host inherit them from mpirun. To other hosts Hydra would send the environment
    unencrypted (seen with Intel MPI 2021.18); ranks there have those of their own host's SSH
    sessions.

    Args:
        variables: those of the launch, which all hosts need.
    """
    kept = sorted(
        name
        for name, value in environment.items()
        if name not in variables and may_hold_credentials(name, value)
    )
    return [argv[0], *(["-genvexcl", ",".join(kept)] if kept else []), *argv[1:]]


def host_path() -> str:
    """PATH of this host."""
    return os.environ.get("PATH", os.defpath)


def free_port() -> int:
    """A TCP port of RENDEZVOUS_PORTS that is free on this host now.

    Raises:
        TrainError: there is none; says whose they are.
    """
    with hold_port() as held:
        return _number(held)


def hold_port() -> socket.socket:
    """As `free_port`; no other launch takes the port until this socket is closed.

    Rank 0 listens there meanwhile: with SO_REUSEADDR on both, Linux lets one of them.
    """
    held = _hold(RENDEZVOUS_PORTS, "torch's rendezvous")
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return held


def _number(held: socket.socket) -> int:
    return int(held.getsockname()[1])


def _hold(ports: range, needed_by: str) -> socket.socket:
    order = list(ports)
    random.shuffle(order)  # two launches at the same moment do not take the same one
    for port in order:
        probe = socket.socket()
        try:
            probe.bind(("", port))
            return probe
        except OSError:
            probe.close()
    first, last = ports.start, ports.stop - 1
    users = users_of(ports)
    whose = f", of which users listen at {', '.join(users)}" if users else ""
    raise TrainError(
        f"no TCP port from {first} to {last} is free on {socket.gethostname()}{whose}, and "
        f"{needed_by} needs one",
        f"end the programs that use them: sudo ss -ltnp 'sport >= :{first} and sport <= :{last}'",
    )


def users_of(ports: range) -> list[str]:
    """Who listens at how many of some ports, such as `50: nobody`.

    Only root sees the processes of others; the users of sockets are everybody's to see.
    """
    found: dict[int, set[int]] = {}
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in Path("/proc/net", name).read_text(encoding="ascii").splitlines()[1:]:
                words = line.split()
                port = int(words[1].rpartition(":")[2], 16)
                if words[3] == LISTENS and port in ports:
                    found.setdefault(int(words[7]), set()).add(port)
    return [f"{len(held)}: {_user_name(uid)}" for uid, held in sorted(found.items())]


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def take_secrets(launch: Launch, request: StopRequest) -> dict[str, str]:
    """The contents of the run's secret files, by their names.

    The control node writes them once there is a supervisor, which removes them whatever happens
    then: before, a control node that is killed would leave them here.

    Raises:
        TrainError: one has not come within ARRIVAL_SECONDS.
        Stopped: the run was ended meanwhile.
    """
    found = {}
    deadline = time.monotonic() + ARRIVAL_SECONDS
    for name, (variable, what) in SECRETS.items():
        path = Path(launch.run_dir, name)
        while launch.env.get(variable) == str(path) and not path.exists():
            request.check()
            if time.monotonic() > deadline:
                raise TrainError(
                    f"{what} has not come: ftcluster was ended during the launch",
                    "start the run again",
                )
            time.sleep(POLL_SECONDS)
        if path.exists():
            found[name] = path.read_text(encoding="ascii").strip()
    return found


def give_secrets(secrets: Mapping[str, str], launch: Launch) -> list[HostFailure]:
    """Write the secret files on all hosts; where one fails, on none. Returns those that failed."""
    for name, content in secrets.items():
        if failed := _give(Path(launch.run_dir, name), content, launch):
            take_back_secrets(launch)
            what = f"{SECRETS[name][1]} cannot be written"
            return [replace(one, reason=f"{what}: {one.reason}") for one in failed]
    return []


def _give(path: Path, content: str, launch: Launch) -> list[HostFailure]:
    try:
        path.unlink(missing_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(content)
    except OSError as error:
        return [HostFailure(launch.hosts[0], str(error.strerror), False)]
    command = f"umask 077 && cat > {shlex.quote(str(path))}"
    others = () if launch.slurm_job else launch.hosts[1:]  # which share the folder
    return refusals(others, launch.ssh_config, command, content, launch.timeouts.ssh)


def left_secrets(run_dir: Path) -> list[Path]:
    """The secret files on this host, and those of writers that were killed before they renamed."""
    # what plugins/module_utils/safe_path.py writes has such a name first
    paths = (*(run_dir / name for name in SECRETS), *run_dir.glob(".ftcluster-*"))
    return [path for path in paths if path.exists()]


def take_back_secrets(launch: Launch) -> None:
    """Remove the secret files from all hosts that answer."""
    run_dir = Path(launch.run_dir)
    # on other hosts those that were given: by what is left here, and by what is to come
    names = [
        name
        for name, (variable, _) in SECRETS.items()
        if (run_dir / name).exists() or launch.env.get(variable) == str(run_dir / name)
    ]
    for path in left_secrets(run_dir):
        path.unlink(missing_ok=True)
    if names:
        remove = " ".join(["rm -f", *(shlex.quote(str(run_dir / name)) for name in names)])
        others = () if launch.slurm_job else launch.hosts[1:] + launch.idle
        refusals(others, launch.ssh_config, remove, limit_seconds=launch.timeouts.ssh)
