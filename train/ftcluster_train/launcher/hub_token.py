"""A user's token for the Hugging Face Hub, on a run's hosts for as long as its ranks are there.

It is in a file that only the ranks' account can read; HF_TOKEN_PATH tells huggingface_hub of it. It
is no variable, because mpirun sends those over the network unencrypted; to the other hosts it goes
over the mesh's SSH. Standard library only: the supervisor uses it.
"""

import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from ftcluster_train.launcher.ssh_check import Host, refusals

UNWRITTEN = "the token for the Hub cannot be written"
NAME = "hub_token"  # in the run's folder; the launch names it in HF_TOKEN_PATH


def token_file(run_dir: Path) -> Path:
    """Where a run's token is on each of its hosts."""
    return run_dir / NAME


def give(token: str, run_dir: Path, others: Sequence[Host], ssh_config: str) -> list[str]:
    """Write the token on all hosts; returns what went wrong, as sentences.

    Args:
        token: is not empty.
        run_dir: the run's folder, the same on every host.
        others: all hosts but this one, the head.
        ssh_config: the mesh's SSH configuration.
    """
    path = token_file(run_dir)
    try:
        path.unlink(missing_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(token)
    except OSError as error:
        return [f"{os.uname().nodename}: {UNWRITTEN}: {error.strerror}"]
    command = f"umask 077 && cat > {shlex.quote(str(path))}"
    return [
        f"{refusal.host.name} ({refusal.host.address}): {UNWRITTEN}: {refusal.reason}"
        for refusal in refusals(others, ssh_config, command, token)
    ]


def take_back(run_dir: Path, others: Sequence[Host], ssh_config: str) -> None:
    """Remove the token from all hosts that answer."""
    path = token_file(run_dir)
    path.unlink(missing_ok=True)
    refusals(others, ssh_config, f"rm -f {shlex.quote(str(path))}")
