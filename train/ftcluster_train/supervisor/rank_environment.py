"""The environment of the ranks without this host's secrets, and delivery of the user's own secrets.

The user's secrets are a token for the Hugging Face Hub and variables. While ranks run, each host
keeps them in files that only the ranks' account can read. huggingface_hub finds the token's file by
HF_TOKEN_PATH. Each rank reads the variables from a second file after its start. The supervisor
copies the files to the other hosts over the mesh's SSH. mpirun does not get the secrets, because it
sends variables over the network unencrypted. `ftcluster.launch.environment` on the control node
lists all stages of the environment and their precedence. Standard library only.
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
    WEBHOOK_FILE,
    Launch,
    head_variables,
    may_hold_credentials,
)
from ftcluster_train.errors import TrainError
from ftcluster_train.supervisor.heartbeats import StopRequest
from ftcluster_train.supervisor.ssh_check import HostFailure, refusals

# the only variables that ranks get from the host's environment
INHERITED = (
    "HOME", "LANG", "LC_ALL", "TMPDIR", "USER",
    "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE",
    "http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY",
    "all_proxy", "ALL_PROXY",
)  # fmt: skip
# in a Slurm job mpirun starts srun, which finds slurm.conf by SLURM_CONF
INHERITED_PREFIXES = ("HF_", "MLFLOW_", "TRACKIO_", "WANDB_", "SLURM_CONF")
LISTENS = "0A"  # TCP_LISTEN of Linux, include/net/tcp_states.h
# for each file: the variable that names it to the ranks, and a description for messages
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
    """Return the complete environment of mpirun and its ranks.

    Args:
        variables: variables of the launch; they override all others.
        sourced: variables that the backend's own scripts have set. Their PATH comes after the
            stack's, so that the stack's mpirun and Hydra are used.
        rendezvous: socket that reserves torch's port; None uses any port that is free now.

    Raises:
        TrainError: no port is free for torch or mpirun.
    """
    _hold(MPI_PORTS, "mpirun").close()  # mpirun itself reports no lack of ports
    inherited = {
        key: value
        for key, value in os.environ.items()
        if (key in INHERITED or key.startswith(INHERITED_PREFIXES))
        # huggingface_hub fails with a SOCKS proxy, because no stack has a library for it
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
    """Return mpirun's command line with options that keep this host's credentials on this host.

    The ranks of this host inherit the credentials from mpirun. Without the options, Hydra would
    send the environment to other hosts unencrypted (seen with Intel MPI 2021.18). The ranks on
    other hosts have the credentials that SSH sessions get there.

    Args:
        variables: variables of the launch, which all hosts need.
    """
    kept = sorted(
        name
        for name, value in environment.items()
        if name not in variables and may_hold_credentials(name, value)
    )
    return [argv[0], *(["-genvexcl", ",".join(kept)] if kept else []), *argv[1:]]


def host_path() -> str:
    """Return the PATH of this host."""
    return os.environ.get("PATH", os.defpath)


def free_port() -> int:
    """Return a TCP port of RENDEZVOUS_PORTS that is free on this host now.

    Raises:
        TrainError: no port is free; the message names the users of the ports.
    """
    with hold_port() as held:
        return _number(held)


def hold_port() -> socket.socket:
    """Reserve a free port: no other launch takes it until the returned socket is closed.

    Rank 0 can listen at the port meanwhile: if both sockets have SO_REUSEADDR, Linux allows one of
    them to listen.
    """
    held = _hold(RENDEZVOUS_PORTS, "torch's rendezvous")
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return held


def _number(held: socket.socket) -> int:
    return int(held.getsockname()[1])


def _hold(ports: range, needed_by: str) -> socket.socket:
    order = list(ports)
    random.shuffle(order)  # so that two launches at the same moment choose different ports
    for port in order:
        probe = socket.socket()
        try:
            probe.bind(("", port))
            return probe
        except OSError:
            probe.close()
    first, last = ports.start, ports.stop - 1
    users = users_of(ports)
    whose = f" (ports that each user listens on: {', '.join(users)})" if users else ""
    raise TrainError(
        f"no TCP port from {first} to {last} is free on {socket.gethostname()}{whose}, but "
        f"{needed_by} needs one",
        f"end the programs that use them: sudo ss -ltnp 'sport >= :{first} and sport <= :{last}'",
    )


def users_of(ports: range) -> list[str]:
    """Return how many of these ports each user listens on, such as `50: nobody`.

    Only root can read which process of another user listens, but every account can read which user.
    """
    ports_by_user: dict[int, set[int]] = {}
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in Path("/proc/net", name).read_text(encoding="ascii").splitlines()[1:]:
                fields = line.split()
                port = int(fields[1].rpartition(":")[2], 16)
                if fields[3] == LISTENS and port in ports:
                    ports_by_user.setdefault(int(fields[7]), set()).add(port)
    return [f"{len(held)}: {_user_name(uid)}" for uid, held in sorted(ports_by_user.items())]


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def take_secrets(launch: Launch, request: StopRequest) -> dict[str, str]:
    """Wait for the run's secret files; return their contents by file name.

    The control node writes the files once the supervisor runs, because the supervisor always
    removes them. A control node that was killed earlier would leave them on the host.

    Raises:
        TrainError: a file has not arrived within ARRIVAL_SECONDS.
        Stopped: the run was ended meanwhile.
    """
    contents = {}
    deadline = time.monotonic() + ARRIVAL_SECONDS
    for name, (variable, what) in SECRETS.items():
        path = Path(launch.run_dir, name)
        while launch.env.get(variable) == str(path) and not path.exists():
            request.check()
            if time.monotonic() > deadline:
                raise TrainError(
                    f"{what} has not arrived: ftcluster was ended during the launch",
                    "start the run again",
                )
            time.sleep(POLL_SECONDS)
        if path.exists():
            contents[name] = path.read_text(encoding="ascii").strip()
    return contents


def give_secrets(secrets: Mapping[str, str], launch: Launch) -> list[HostFailure]:
    """Write the secret files on all hosts; if a host fails, remove them from all.

    Returns:
        The hosts that failed.
    """
    for name, content in secrets.items():
        if failed := _give(Path(launch.run_dir, name), content, launch):
            take_back_secrets(launch)
            what = f"{SECRETS[name][1]} cannot be written"
            return [replace(host, reason=f"{what}: {host.reason}") for host in failed]
    return []


def _give(path: Path, content: str, launch: Launch) -> list[HostFailure]:
    try:
        path.unlink(missing_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(content)
    except OSError as error:
        return [HostFailure(launch.hosts[0], str(error.strerror))]
    command = f"umask 077 && cat > {shlex.quote(str(path))}"
    others = () if launch.slurm_job else launch.hosts[1:]  # a job's hosts share the folder
    return refusals(others, launch.ssh_config, command, content, launch.timeouts.ssh)


def left_secrets(run_dir: Path) -> list[Path]:
    """Return the paths of secret files on this host, with partial files of killed writers."""
    # plugins/module_utils/safe_path.py first writes to a file with such a name
    names = (*SECRETS, WEBHOOK_FILE)
    paths = (*(run_dir / name for name in names), *run_dir.glob(".ftcluster-*"))
    return [path for path in paths if path.exists()]


def take_back_secrets(launch: Launch) -> None:
    """Remove the secret files from all hosts that answer."""
    run_dir = Path(launch.run_dir)
    # other hosts may have the files that exist here, and the files that the launch names
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
