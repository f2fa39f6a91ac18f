"""The environment of mpirun and its ranks, without this host's secrets. Standard library only."""

import contextlib
import os
import random
import re
import socket
from collections.abc import Mapping, Sequence

from ftcluster_common.launch import RENDEZVOUS_PORTS, head_variables
from ftcluster_train.errors import TrainError

# of the host's environment, the ranks get only what they may need
INHERITED = (
    "HOME", "LANG", "LC_ALL", "TMPDIR", "USER", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE",
    "http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY",
)  # fmt: skip
INHERITED_PREFIXES = ("HF_", "MLFLOW_", "TRACKIO_")
CREDENTIAL = re.compile("TOKEN(?!_PATH)|PASSWORD|SECRET|KEY")  # in names of variables


def rank_environment(
    variables: Mapping[str, str], stack: str, sourced: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The whole environment of mpirun and its ranks.

    Args:
        variables: those of the launch; they override all others.
        sourced: what the backend's own scripts have set; their PATH comes after the stack's, so
            that mpirun and Hydra remain those of the stack.

    Raises:
        TrainError: no port is free.
    """
    inherited = {
        key: value
        for key, value in os.environ.items()
        if key in INHERITED or key.startswith(INHERITED_PREFIXES)
    }
    sourced = sourced or {}
    path = sourced.get("PATH") or host_path()
    return {
        **inherited,
        **sourced,
        **head_variables(stack, path, str(free_port())),
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
        if name not in variables
        and (CREDENTIAL.search(name) or (name.lower().endswith("_proxy") and "@" in value))
    )
    return [argv[0], *(["-genvexcl", ",".join(kept)] if kept else []), *argv[1:]]


def host_path() -> str:
    """PATH of this host."""
    return os.environ.get("PATH", os.defpath)


def free_port() -> int:
    """A TCP port of RENDEZVOUS_PORTS that is free on this host now.

    Raises:
        TrainError: there is none.
    """
    ports = list(RENDEZVOUS_PORTS)
    random.shuffle(ports)  # two launches at the same moment do not take the same one
    for port in ports:
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("", port))
            return port
    first, stop = RENDEZVOUS_PORTS.start, RENDEZVOUS_PORTS.stop
    raise TrainError(
        f"no TCP port from {first} to {stop - 1} is free on {socket.gethostname()}, and torch's "
        "rendezvous needs one",
        f"end the programs that use them: ss -ltnp 'sport >= :{first} and sport < :{stop}'",
    )
