"""Accelerate's own tests of distributed training, each launched like a user's script."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ftcluster_common.protocol.job import ScriptJob
from ftcluster_common.protocol.launch import (
    ACCELERATE_CPU_VARIABLE,
    BACKEND_VARIABLE,
    Launch,
    RankCores,
    RankHost,
    mpirun_command,
)
from tests.engine.mpi.test_mpi_backend import environment

SECONDS = 900
FOUND = os.environ.get("PYTHONPATH", "")  # without the folder that the launcher adds
RANK = RankCores("0-1023", 1)
MODULE = "accelerate.test_utils.scripts"
LAST_WORDS = {  # last lines of each script's output; no script prints a message at its end
    "test_ops": "testing sending tensors across devices",
    "test_script": "**Test reinstantiated state**",
    "test_sync": "`split_batches=False`, `dispatch_batches=False`, `sync_each_batch=False`**",
    "test_distributed_data_loop": "Test DataLoader with sampler as an instance of `BatchSampler`",
}
# Accelerate joins uneven inputs only on GPUs, so ranks on CPUs would wait forever. torchdata, which
# has stateful loaders, is in no stack
LOOPS = f"""
import os
os.environ["ACCELERATE_BYPASS_DEVICE_MAP"] = "true"
from accelerate import Accelerator
from accelerate.utils import DistributedType
from {MODULE} import test_distributed_data_loop as loops
loops.test_stateful_dataloader = loops.test_stateful_dataloader_save_state = lambda _: None
ours = DistributedType.MULTI_CPU
Accelerator.multi_device = property(lambda self: self.distributed_type == ours)
loops.main()
"""


def launched(script: str, backend: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    """Run one of accelerate's scripts on two ranks."""
    program: tuple[str, ...] = ("-m", f"{MODULE}.{script}")
    if script == "test_distributed_data_loop":
        program = (str(folder / "loops.py"),)
        Path(*program).write_text(LOOPS)
    return launched_program(program, backend, folder)


def launched_program(
    program: tuple[str, ...], backend: str, folder: Path, site: str = ""
) -> "subprocess.CompletedProcess[str]":
    """Run a script or module on two ranks, which also find the packages in `site`."""
    job = ScriptJob("accelerate", str(folder), program, str(folder))
    (folder / "job.json").write_text(json.dumps(job.to_dict()))
    launch = Launch(
        str(folder),
        ("-m", "ftcluster_train.host.script", "run", str(folder)),
        {BACKEND_VARIABLE: backend, ACCELERATE_CPU_VARIABLE: "true"},
        (RankHost("localhost", "127.0.0.1", (RANK, RANK)),),
        "",
        sys.prefix,
        script=True,
    )
    command = mpirun_command(launch)
    Path(launch.hostfile_path).write_text(command.hostfile)
    found = {"PYTHONPATH": os.pathsep.join(filter(None, (FOUND, site)))}
    return subprocess.run(
        command.argv, env=environment() | command.env | found, cwd=folder, text=True,
        timeout=SECONDS, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("script", "backend"),
    [
        pytest.param("test_ops", "impi", marks=pytest.mark.more),
        *(
            pytest.param(script, backend, marks=pytest.mark.long)
            for script in LAST_WORDS
            for backend in ("gloo", "impi")
            if (script, backend) != ("test_ops", "impi")
        ),
    ],
)
def test_accelerates_scripts_pass_with_the_planned_backend(
    script: str, backend: str, tmp_path: Path
) -> None:
    done = launched(script, backend, tmp_path)
    assert done.returncode == 0, done.stdout
    assert LAST_WORDS[script] in done.stdout, done.stdout
    assert f"FTCLUSTER-BACKEND {backend}" in done.stdout, done.stdout
