"""The torch.distributed backend over Intel MPI, on ranks that mpirun starts; see mpi_ranks.py.

What the ranks do is in mpi_ranks.py.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed as dist
from torch.distributed import DistBackendError

from ftcluster_mpi.job import ALGORITHMS, Member, check, check_shared_memory
from ftcluster_train.comm.torch_backends import register
from ftcluster_train.rank.script import STARTUP
from tests.engine.ranks import on_ranks as on_forked_ranks
from tests.programs import ROOT, free_ports

BIN = Path(sys.executable).parent
PROGRAM = (sys.executable, "-W", "ignore", "-m", "tests.engine.mpi.mpi_ranks")
SPARE_PORTS = 10  # ports for the case planned_backend
SECONDS = 300  # limit for all cases, even if other tests use the CPUs


def environment(cases: int = 1) -> dict[str, str]:
    ports = [str(port) for port in free_ports(cases + SPARE_PORTS)]
    return {
        **os.environ,
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "PYTHONPATH": f"{STARTUP}:{os.environ.get('PYTHONPATH', '')}:{ROOT}",
        "FTCLUSTER_BACKEND": "impi",
        "ACCELERATE_USE_CPU": "true",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": ports[0],
        "MASTER_PORTS": ",".join(ports[:cases]),
        "SPARE_PORTS": ",".join(ports[cases:]),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
    }


def on_ranks(ranks: int, *cases: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [BIN / "mpirun", "-n", str(ranks), *PROGRAM, *cases],
        env=environment(len(cases)), cwd=ROOT, text=True, timeout=SECONDS, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


# in one launch, because the start of a rank takes seconds
CASES = ("compare", "beyond_gloo", "messages", "in_flight", "libraries", "planned_backend",
         "optimizers", "other_calls", "waits_long", "blocking_hooks", "uneven_inputs",
         "many_groups", "sparse_gradients", "uneven", "saves_and_profiles", "store_is_waited_with",
         "memory_of_results", "ends_late")  # fmt: skip


@pytest.fixture(scope="module")
def done() -> "subprocess.CompletedProcess[str]":
    with pytest.MonkeyPatch.context() as patch:  # as between hosts
        patch.setenv("I_MPI_ADJUST_IALLREDUCE", ALGORITHMS.format(4))
        return on_ranks(3, *CASES)


def test_every_collective_is_gloos_and_libraries_learn_the_same(
    done: "subprocess.CompletedProcess[str]",
) -> None:
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("is done") == 3


def test_the_backend_is_reported_once_for_each_group_of_the_world(
    done: "subprocess.CompletedProcess[str]",
) -> None:
    said = re.findall(r"FTCLUSTER-BACKEND (\w+)", done.stdout)
    assert (said.count("gloo"), said.count("impi")) == (4, len(CASES) + 6)


def test_what_ranks_share_has_no_name_that_others_could_open(
    done: "subprocess.CompletedProcess[str]",
) -> None:
    # mpirun may put two ranks' texts on one line
    shared = re.findall(r"rank \d shares: (.*?)(?=rank \d|$)", done.stdout, re.MULTILINE)
    assert len(shared) == 3, done.stdout
    assert all(re.fullmatch(r"(/dev/shm/\S+ \(deleted\) ?)+", one) for one in shared), shared


def test_calls_that_differ_between_ranks_are_named_on_each(
    done: "subprocess.CompletedProcess[str]",
) -> None:
    host = os.uname().nodename
    for said in (
        "the ranks made different calls as call 1 of their group: "
        f"rank 0 ({host}): all_reduce (sum) of 3 float32; "
        f"rank 1 ({host}): all_reduce (sum) of 4 float32; "
        f"rank 2 ({host}): all_reduce (sum) of 5 float32",
        "the ranks made different calls as call 2 of their group: "
        f"ranks 0, 2 ({host}): all_reduce (sum) of 3 float32; "
        f"rank 1 ({host}): all_reduce (sum) of 3 float64",
        "the ranks made different calls as call 3 of their group: "
        f"rank 0 ({host}): all_reduce (sum) of 3 float32; "
        f"ranks 1, 2 ({host}): broadcast of 3 float32, root 0",
        f"all_to_all of float32: rank 1 ({host}) sends 2 elements to rank 2 ({host}), "
        "which expects 1",
    ):
        for rank in range(3):  # mpirun may put two ranks' texts on one line
            assert f"rank {rank}: {said}" in done.stdout


def test_a_program_that_does_not_destroy_its_group_ends_cleanly(
    done: "subprocess.CompletedProcess[str]",
) -> None:
    assert done.returncode == 0, done.stdout
    assert "saved" in done.stdout


@pytest.mark.parametrize("times", ["3", pytest.param("100", marks=pytest.mark.long)])
def test_memory_that_mpi_may_write_to_is_kept(monkeypatch: pytest.MonkeyPatch, times: str) -> None:
    """Memory stays allocated after a timeout, and the rank ends with a failure."""
    monkeypatch.setenv("TIME_OUTS", times)
    monkeypatch.setenv("MALLOC_CHECK_", "3")
    # this library detects writes to freed memory
    monkeypatch.setenv("LD_PRELOAD", "libc_malloc_debug.so.0")
    done = on_ranks(3, "caught_time_out", "time_outs")
    assert done.stdout.count("is done") == 3, done.stdout
    assert "of 3 float32: Timed out waiting 1000ms on rank 0" in done.stdout  # the wording of torch
    assert re.search(r"ended without the other ranks.*all_reduce", done.stdout)


@pytest.mark.parametrize(
    ("case", "said"),
    [
        pytest.param("fails", "KeyError: 'of rank 1'", marks=pytest.mark.long),
        ("exits", r"rank 0 \(.*\): all_reduce \(sum\) of 3 float32; rank 1 \(.*\): no call"),
        ("is_stopped", r"rank 0 \(.*\): rank 1 \(.*\) did not call it, or no longer responds"),
    ],
)
def test_a_rank_that_fails_ends_all(case: str, said: str) -> None:
    failed = on_ranks(2, case)
    assert failed.returncode != 0
    assert re.search(said, failed.stdout), failed.stdout


def _in_no_job(_rank: int, _size: int) -> str:
    """Return the error of a process that mpirun did not start."""
    register()
    with pytest.raises(DistBackendError) as caught:
        dist.new_group(backend="impi")
    return str(caught.value)


def test_ranks_of_torchrun_are_told_to_use_mpirun(tmp_path: Path) -> None:
    for said in on_forked_ranks(_in_no_job, 2, tmp_path):
        assert "mpirun did not start these ranks" in said


def test_hosts_with_another_torch_are_named() -> None:
    members = [
        Member(number, 3, f"node{number}", {"torch": version, "mpi4py": "4"})
        for number, version in enumerate(("2.13.0", "2.13.0", "another"))
    ]
    check(members[:2])
    said = r"rank 0 \(node0\) has torch 2\.13\.0, mpi4py 4; rank 2 \(node2\) has torch another\. "
    with pytest.raises(DistBackendError, match=said):
        check(members)


def test_too_little_shared_memory_is_named_before_ranks_are_killed_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1_000_000))
    check_shared_memory(1)
    with pytest.raises(DistBackendError, match=r"/dev/shm has 1\.0 MB free, but .* for 2 ranks"):
        check_shared_memory(2)


def test_ccl_is_left_to_oneccl_bind_pt_and_else_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # registered by the package's entry point
    assert {"impi", "ccl"} <= set(dist.Backend.backend_list)
    monkeypatch.setattr(dist.Backend, "backend_list", ["gloo"])
    registered: dict[str, Any] = {}
    monkeypatch.setattr(
        dist.Backend,
        "register_backend",
        lambda name, make, **_: registered.update({name: make}),
    )
    register()
    with pytest.raises(DistBackendError, match="needs oneccl_bind_pt, which this stack"):
        registered.pop("ccl")()
    assert [*registered] == ["impi"]
    registered.clear()
    (tmp_path / "oneccl_bindings_for_pytorch.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    register()
    assert [*registered] == ["impi"]
