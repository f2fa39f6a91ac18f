"""The backend of torch.distributed over Intel MPI, with ranks that mpirun starts.

What the ranks do is in mpi_ranks.py.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from torch.distributed import DistBackendError

from ftcluster_train.distributed.mpi_job import check_shared_memory
from tests.programs import ROOT, free_ports

BIN = Path(sys.executable).parent
PROGRAM = (sys.executable, "-W", "ignore", "-m", "tests.engine.mpi_ranks")
SECONDS = 120


def environment() -> dict[str, str]:
    (port,) = free_ports(1)
    return {
        **os.environ,
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "PYTHONPATH": f"{os.environ.get('PYTHONPATH', '')}:{ROOT}",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
    }


def on_ranks(ranks: int, *cases: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [BIN / "mpirun", "-n", str(ranks), *PROGRAM, *cases],
        env=environment(), cwd=ROOT, text=True, timeout=SECONDS, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def test_every_collective_is_gloos_and_libraries_learn_the_same() -> None:
    done = on_ranks(3, "compare", "beyond_gloo", "messages", "in_flight", "libraries", "optimizers")
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("is done") == 3


def test_calls_that_differ_between_ranks_are_named_on_each() -> None:
    done = on_ranks(3, "other_calls")
    assert done.returncode == 0, done.stdout
    host = os.uname().nodename
    for said in (
        "the ranks differ in call 1 of their group: "
        f"rank 0 ({host}): all_reduce (sum) of 3 float32; "
        f"rank 1 ({host}): all_reduce (sum) of 4 float32; "
        f"rank 2 ({host}): all_reduce (sum) of 5 float32",
        "the ranks differ in call 2 of their group: "
        f"ranks 0, 2 ({host}): all_reduce (sum) of 3 float32; "
        f"rank 1 ({host}): all_reduce (sum) of 3 float64",
        "the ranks differ in call 3 of their group: "
        f"rank 0 ({host}): all_reduce (sum) of 3 float32; "
        f"ranks 1, 2 ({host}): broadcast of 3 float32, root 0",
        f"all_to_all of float32: rank 1 ({host}) sends 2 elements to rank 2 ({host}), "
        "which expects 1",
    ):
        for rank in range(3):  # mpirun may put two ranks' texts on one line
            assert f"rank {rank}: {said}" in done.stdout


@pytest.mark.parametrize(
    ("case", "said"),
    [
        ("fails", "KeyError: 'of rank 1'"),
        ("exits", r"rank 0 \(.*\): all_reduce \(sum\) of 3 float32; rank 1 \(.*\): nothing"),
        ("is_killed", "KILLED BY SIGNAL"),
        ("is_stopped", r"rank 0 \(.*\): rank 1 \(.*\) did not call it, or no longer answers"),
        ("has_another_torch", r"rank 0 \(.*\) has torch 2.*; rank 1 \(.*\) has torch another"),
    ],
)
def test_a_rank_that_fails_ends_all(case: str, said: str) -> None:
    done = on_ranks(2, case)
    assert done.returncode != 0
    assert re.search(said, done.stdout), done.stdout


def test_a_program_that_does_not_destroy_its_group_ends_cleanly() -> None:
    done = on_ranks(2, "ends_late")
    assert done.returncode == 0, done.stdout
    assert "saved" in done.stdout


def test_ranks_of_torchrun_are_told_to_use_mpirun() -> None:
    ranks = [
        subprocess.Popen(
            [*PROGRAM, "compare"], cwd=ROOT, text=True, stderr=subprocess.PIPE,
            env=shared | {"RANK": str(rank), "WORLD_SIZE": "2"},
        )
        for shared in [environment()]
        for rank in (0, 1)
    ]  # fmt: skip
    for rank in ranks:
        _, said = rank.communicate(timeout=SECONDS)
        assert rank.returncode == 1
        assert "mpirun did not start these ranks" in said


def test_too_little_shared_memory_is_named_before_ranks_are_killed_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1_000_000))
    check_shared_memory(1)
    with pytest.raises(DistBackendError, match=r"/dev/shm has 1\.0 MB free, and .* for 2 ranks"):
        check_shared_memory(2)


REGISTERED = """
import torch.distributed as dist
import ftcluster_train.mpi
print(sorted({"impi", "ccl"} & set(dist.Backend.backend_list)))
try:
    dist.init_process_group("ccl", store=dist.HashStore(), rank=0, world_size=1)
except dist.DistBackendError as error:
    print(error)
"""


def test_ccl_is_left_to_oneccl_bind_pt_and_else_explained(tmp_path: Path) -> None:
    def said() -> str:
        path = f"{tmp_path}:{environment()['PYTHONPATH']}"
        return subprocess.run(
            [sys.executable, "-c", REGISTERED], env=environment() | {"PYTHONPATH": path},
            cwd=ROOT, capture_output=True, text=True, timeout=SECONDS, check=False,
        ).stdout  # fmt: skip

    assert said().startswith("['ccl', 'impi']\nthe stack does not have oneccl_bind_pt")
    (tmp_path / "oneccl_bindings_for_pytorch.py").write_text("")
    assert said() == "['impi']\n"
