"""Backends that torch.distributed lacks: impi, and ccl from the binding oneccl_bind_pt.

The binding contains oneCCL and an MPI library. Its env/setvars.sh sets variables that locate both.
The supervisor therefore sources this file before mpirun starts the ranks (torch-ccl's README).

The tests use a substitute for the binding, because the test machines cannot reach the index with
its wheels.

Standard library only.
"""

import importlib
import importlib.util
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ftcluster_common.protocol.launch import BACKEND_VARIABLE, CCL, RUN_VARIABLE
from ftcluster_train.errors import TrainError, error_line

ONECCL = "oneccl_bindings_for_pytorch"
SETVARS = Path("env/setvars.sh")
SETVARS_SECONDS = 60
BASH_VARIABLES = {"PWD", "OLDPWD", "SHLVL", "_"}  # bash sets these itself
HINT = (
    "train with the backend gloo (training.ddp_backend=gloo), or set up a stack that contains "
    "oneccl_bind_pt; `ftcluster stacks` lists the stacks"
)
# The file is sourced without arguments, because setvars.sh would forward the first argument. Its
# output goes to stderr.
SCRIPT = 'file=$1; shift; . "$file" >&2 && exec env -0'


def find_setvars() -> Path:
    """Return the env/setvars.sh of the binding that this Python imports.

    Raises:
        TrainError: the binding is not installed, or the file is missing.
    """
    spec = importlib.util.find_spec(ONECCL)
    folders = list(spec.submodule_search_locations or ()) if spec else []
    if not folders:
        raise TrainError(f"the backend ccl needs {ONECCL}, which the stack does not contain", HINT)
    path = Path(folders[0]) / SETVARS
    if not path.is_file():
        raise TrainError(f"{ONECCL} is damaged: {path} does not exist", "set the stack up again")
    return path


def sourced_variables(setvars: Path, path: str) -> dict[str, str]:
    """Return the variables that a shell script sets when bash sources it in a clean environment.

    Args:
        path: value of PATH, the only variable in that environment.

    Raises:
        TrainError: bash is not on `path`, or the script fails.
    """
    before = {"PATH": path}
    argv = ["bash", "--noprofile", "--norc", "-c", SCRIPT, "bash", str(setvars)]
    try:
        done = subprocess.run(
            argv, env=before, stdin=subprocess.DEVNULL, capture_output=True,
            timeout=SETVARS_SECONDS, check=False,
        )  # fmt: skip
    except FileNotFoundError:
        raise TrainError(f"{setvars} needs bash, which is not on {path}", HINT) from None
    except subprocess.TimeoutExpired:
        raise TrainError(f"{setvars} did not end within {SETVARS_SECONDS} s", HINT) from None
    if done.returncode != 0:
        stderr = done.stderr.decode(errors="replace").strip().splitlines()
        raise TrainError(f"{setvars} failed: {stderr[-1] if stderr else done.returncode}", HINT)
    lines = done.stdout.decode(errors="surrogateescape").split("\0")
    after = dict(line.split("=", 1) for line in lines if "=" in line)
    return {
        name: value
        for name, value in after.items()
        if name not in BASH_VARIABLES and before.get(name) != value
    }


def variables_for(launch: Mapping[str, str], path: str) -> dict[str, str]:
    """Return the additional variables for the ranks of a launch with ccl; {} without ccl.

    Raises:
        TrainError: see `find_setvars` and `sourced_variables`.
    """
    if launch.get(BACKEND_VARIABLE) != CCL:
        return {}
    return sourced_variables(find_setvars(), path)


def import_ccl() -> None:
    """Register the backend "ccl" with torch.distributed.

    Raises:
        TrainError: the binding cannot be imported.
    """
    try:
        importlib.import_module(ONECCL)
    except (ImportError, OSError, RuntimeError) as error:  # the import loads shared libraries
        raise TrainError(f"{ONECCL} cannot be imported: {error}", HINT) from error


def register() -> None:
    """Register impi, and in a stack without ccl a stand-in for ccl that raises an explanation."""
    import torch.distributed as dist

    from ftcluster_mpi import registration

    registration.register()
    if RUN_VARIABLE in os.environ:
        registration.report_lost_with(_print_error_line)
    if not importlib.util.find_spec(ONECCL) and CCL not in dist.Backend.backend_list:
        dist.Backend.register_backend(CCL, _explain_ccl, devices=["cpu"])


def _print_error_line(message: str, hint: str) -> None:
    print(error_line(TrainError(message, hint)), file=sys.stderr, flush=True)


def _explain_ccl(*_: Any) -> Any:
    """Raise the error for a script that requests "ccl" on a stack without oneccl_bind_pt."""
    import torch.distributed as dist

    raise dist.DistBackendError(
        "the backend ccl needs oneccl_bind_pt, which this stack does not contain. Use the backend "
        'impi (Intel MPI) or gloo; os.environ["FTCLUSTER_BACKEND"] contains the planned backend. '
        "`ftcluster stacks` lists the stacks with oneccl_bind_pt"
    )
