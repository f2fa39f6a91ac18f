"""The environment for exporting models, and the program that runs in it.

An export needs torch. An export for OpenVINO also needs an older transformers than the stacks
contain.
Therefore each format has its own environment; the environments of the control node and of the hosts
stay unchanged.
"""

import fcntl
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from ansible_collections.ftcluster.cluster.plugins.plugin_utils.download import (
    DownloadError,
    Sources,
    Target,
    pip_command,
    pip_environment,
)
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.wheelhouse import (
    Wanted,
    WheelhouseError,
    cache_dir,
    get_wheels,
    verify,
)

from ftcluster.errors import FtclusterError
from ftcluster.paths import collection
from ftcluster.progress.view import View
from ftcluster.stacks.catalog import load_stacks
from ftcluster_common.sizes import free_and_needed

FOLDER = Path(__file__).with_name("exporters")
LOCKS = "roles/torch_stack/files"
OLDEST_LIBC = "2.28"  # required by the stacks' torch; used if Python cannot name its C library
PROGRAM = FOLDER / "program.py"
# the exporter reads only local folders and sends no telemetry
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "DO_NOT_TRACK": "1"}
CONSENT = "intel/openvino_telemetry"  # file below HOME that disables OpenVINO's telemetry


def environment(kind: str, view: View) -> Path:
    """Return the Python of a format's environment; create the environment if it does not exist.

    Raises:
        FtclusterError: a package is not available or has a wrong hash, or the disk is full.
    """
    # the default stack defines the version of torch
    stack = next(stack for stack in load_stacks().values() if stack.state == "default")
    lock, more = FOLDER / f"{kind}.txt", collection() / LOCKS / f"{stack.name}-cuda.txt"
    wanted = Wanted(f"export-{kind}", lock.read_text("utf-8"), more.read_text("utf-8"))
    libc = platform.libc_ver()[1] or OLDEST_LIBC
    target = Target(f"3.{sys.version_info.minor}", libc, platform.machine())
    folder = cache_dir().with_name("exporters") / f"{kind}-{wanted.digest}-{target.tag}"
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with (folder.parent / ".lock").open("w") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            if not folder.is_dir():
                needed, free = wanted.host_bytes, shutil.disk_usage(folder.parent).free
                if free < needed:
                    available, required = free_and_needed(free, needed)
                    raise FtclusterError(
                        f"{folder.parent}: {available} are free, but {required} are needed",
                        "set XDG_CACHE_HOME to another folder",
                    )
                view.say(
                    f"creating an environment in {folder} (only once; {needed / 1e9:.1f} GB) ..."
                )
                _make(folder, wanted, target, Sources(indexes=stack.indexes))
    except OSError as error:
        raise FtclusterError(f"{error.filename or folder}: {error.strerror}") from error
    return folder / "bin/python"


def _make(folder: Path, wanted: Wanted, target: Target, sources: Sources) -> None:
    scratch = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}.")).absolute()
    try:
        house = get_wheels(wanted, target, sources, cache_dir())
        verify(house, wanted, target.python, made_here=True)
        for command in (
            [sys.executable, "-I", "-m", "venv", "--without-pip", str(scratch)],
            [*pip_command(), "--python", str(scratch / "bin/python"), "install", "--quiet",
             "--no-index", "--no-deps", "--no-compile",
             *(str(path.absolute()) for path in house.files)],
        ):  # fmt: skip
            done = subprocess.run(
                command, env=pip_environment(), cwd=scratch, capture_output=True, text=True,
                check=False,
            )  # fmt: skip
            if done.returncode:
                problem = "\n  ".join(
                    (done.stderr.strip() or done.stdout.strip()).splitlines()[-3:]
                )
                raise FtclusterError(f"cannot create an environment in {folder}: {problem}")
        scratch.rename(folder)
        shutil.rmtree(house.folder, ignore_errors=True)
    except (WheelhouseError, DownloadError) as error:
        problem = str(error).partition("\ncheck that pip")[0]  # the rest is about the hosts
        raise FtclusterError(problem, "check pip's package index: pip config list") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def run_program(python: Path, request: dict[str, Any], scratch: Path) -> dict[str, Any]:
    """Run the exporter and return its result.

    Args:
        request: document for `exporters/program.py`.
        scratch: empty folder.

    Raises:
        FtclusterError: the export failed.
    """
    question, answer, consent = scratch / "request.json", scratch / "result.json", scratch / CONSENT
    question.write_text(json.dumps(request), encoding="utf-8")
    consent.parent.mkdir()
    consent.write_text("0")
    done = subprocess.run(
        [str(python), "-I", str(PROGRAM), str(question), str(answer)],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False,
        env={"PATH": os.environ.get("PATH", ""), "HOME": str(scratch), "TMPDIR": str(scratch),
             **OFFLINE},
    )  # fmt: skip
    if done.returncode < 0:
        raise FtclusterError(
            f"the exporter was killed by signal {-done.returncode}",
            "signal 9 often means that the machine ran out of memory",
        )
    try:
        result: dict[str, Any] = json.loads(answer.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        problem = "\n  ".join(done.stderr.strip().splitlines()[-3:])
        raise FtclusterError(f"the exporter failed: {problem}") from error
    if "error" in result:
        raise FtclusterError(f"the model cannot be exported: {result['error']}")
    return result
