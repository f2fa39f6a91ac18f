"""A user's token for the Hugging Face Hub, on a run's hosts while its ranks are running.

It is in a file that only the ranks' account can read; HF_TOKEN_PATH names it to huggingface_hub. It
is not in a variable, because mpirun sends those over the network unencrypted; it goes to the other
hosts over the mesh's SSH. Standard library only.
"""

import os
import shlex
import time
from dataclasses import replace
from pathlib import Path

from ftcluster_common.launch import HUB_TOKEN_FILE, Launch
from ftcluster_train.errors import TrainError
from ftcluster_train.host.ssh_check import Refusal, refusals
from ftcluster_train.host.stop_request import StopRequest

ARRIVAL_SECONDS = 60.0
POLL_SECONDS = 0.05


def token_file(run_dir: Path) -> Path:
    """Where a run's token is on each of its hosts."""
    return run_dir / HUB_TOKEN_FILE


def take_token(launch: Launch, request: StopRequest) -> str:
    """The run's token, "" for none.

    The control node writes it once there is a supervisor, which removes it whatever happens then:
    before, a control node that is killed would leave it here.

    Raises:
        TrainError: it has not come within ARRIVAL_SECONDS.
        Stopped: the run was ended meanwhile.
    """
    path = token_file(Path(launch.run_dir))
    deadline = time.monotonic() + ARRIVAL_SECONDS
    while not path.exists():
        if launch.env.get("HF_TOKEN_PATH") != str(path):
            return ""
        request.check()
        if time.monotonic() > deadline:
            raise TrainError(
                "the token for the Hub has not come: ftcluster was ended during the launch",
                "start the run again",
            )
        time.sleep(POLL_SECONDS)
    return path.read_text(encoding="ascii").strip()


def give(token: str, launch: Launch) -> list[Refusal]:
    """Write the token on all hosts; where one fails, on none. Returns those that failed."""
    path = token_file(Path(launch.run_dir))
    try:
        path.unlink(missing_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(token)
    except OSError as error:
        failed = [Refusal(launch.hosts[0], str(error.strerror), False)]
    else:
        command = f"umask 077 && cat > {shlex.quote(str(path))}"
        others = () if launch.slurm_job else launch.hosts[1:]  # which share the folder
        failed = refusals(others, launch.ssh_config, command, token, launch.timeouts.ssh)
    if failed:
        take_back(launch)
    what = "the token for the Hub cannot be written"
    return [replace(refusal, reason=f"{what}: {refusal.reason}") for refusal in failed]


def left_here(run_dir: Path) -> list[Path]:
    """The token's file on this host, and those of writers that were killed before they renamed."""
    # what plugins/module_utils/safe_path.py writes has such a name first
    return [path for path in (token_file(run_dir), *run_dir.glob(".ftcluster-*")) if path.exists()]


def take_back(launch: Launch) -> None:
    """Remove the token from all hosts that answer."""
    run_dir = Path(launch.run_dir)
    for path in left_here(run_dir):
        path.unlink(missing_ok=True)
    remove = f"rm -f {shlex.quote(str(token_file(run_dir)))}"
    others = () if launch.slurm_job else launch.hosts[1:] + launch.idle
    refusals(others, launch.ssh_config, remove, limit_seconds=launch.timeouts.ssh)
