"""Upload a model's folder to the Hugging Face Hub with the Hub's own command."""

import re
import shutil
import subprocess
from pathlib import Path

from ftcluster.errors import FtclusterError, UsageError
from ftcluster.launch.hub_token import find_token
from ftcluster_common.models.row_hashes import ROWS

PROGRAM = "hf"  # command-line program of huggingface_hub
NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)


def check_push(repository: str) -> str:
    """Check that an upload to the Hub can begin, and return the path of the program `hf`.

    Raises:
        UsageError: the repository's name is not valid, or the program or the token is missing.
    """
    if not NAME.fullmatch(repository):
        raise UsageError(f"--push {repository!a:.80}: write the repository as OWNER/NAME")
    if not (program := shutil.which(PROGRAM)):
        raise UsageError(
            f"--push needs the program {PROGRAM}, which is not on PATH",
            "install the package huggingface_hub in a separate environment",
        )
    find_token(option="--push")
    return program


def push_command(program: str, folder: Path, repository: str, public: bool) -> list[str]:
    """Return the upload command, which excludes the list of training rows.

    No argument contains the token, because the program `hf` finds the token itself.
    """
    return [
        program, "upload", repository, str(folder), ".", "--repo-type", "model",
        "--no-private" if public else "--private", "--exclude", ROWS,
        "--commit-message", "Upload a model trained with ftcluster",
    ]  # fmt: skip


def push(folder: Path, repository: str, public: bool) -> None:
    """Upload a folder to the Hub. If the repository exists, the upload adds a commit to it.

    Raises:
        UsageError: the upload cannot begin, see `check_push`.
        FtclusterError: the program failed.
    """
    command = push_command(check_push(repository), folder, repository, public)
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode:
        output = (done.stderr.strip() or done.stdout.strip()).splitlines()[-3:]
        raise FtclusterError(
            f"{PROGRAM} upload failed: " + "\n  ".join(output), f"the model is in {folder}"
        )
