"""Reaping orphaned processes: as the first process of a container, and as another process."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ftcluster_train.io.processes import is_running
from tests.programs import NODE_PATH, wait_for

CONTAINER = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
# starts a process that ends, reaps nothing, and does not handle SIGTERM
PROGRAM = """
import subprocess, time
subprocess.run("sh -c 'read x < go' &", shell=True)
open("ready", "w").close()
time.sleep(60)
"""
AS_CLI = """
import sys
from ftcluster_common.process_one import leave_process_one
leave_process_one()
import os
os.execvp(sys.argv[1], sys.argv[1:])
"""


def children(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(word) for word in text.split()]


@pytest.mark.parametrize(
    ("before", "program"),
    [
        pytest.param(CONTAINER, ("-m", "ftcluster_common.process_one"),
                     marks=pytest.mark.needs("mount", "pid")),
        pytest.param(CONTAINER, ("-c", AS_CLI), marks=pytest.mark.needs("mount", "pid")),
        ((), ("-m", "ftcluster_common.process_one")),
    ],
)  # fmt: skip
def test_orphans_are_collected_and_signals_passed_on(
    tmp_path: Path, before: tuple[str, ...], program: tuple[str, ...]
) -> None:
    os.mkfifo(tmp_path / "go")
    process = subprocess.Popen(
        [*before, sys.executable, *program, sys.executable, "-c", PROGRAM],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": NODE_PATH},
    )  # fmt: skip
    try:
        wait_for((tmp_path / "ready").exists)
        [first] = children(process.pid) if before else [process.pid]
        wait_for(lambda: len(children(first)) == 2)  # the program and the orphan
        (tmp_path / "go").write_text("\n")
        wait_for(lambda: len(children(first)) == 1)  # a zombie would still count as a child
        os.kill(first, signal.SIGTERM)
        assert process.wait(30) == 128 + signal.SIGTERM
        assert not is_running(first)
    finally:
        process.kill()
        process.wait()


def test_the_exit_code_after_a_signal() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ftcluster_common.process_one", "sh", "-c", "kill -9 $$"],
        env={**os.environ, "PYTHONPATH": NODE_PATH}, check=False,
    )  # fmt: skip
    assert done.returncode == 128 + signal.SIGKILL
