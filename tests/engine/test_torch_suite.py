"""torch's own tests of a backend pass with impi as they pass with gloo; see torch_suite.py."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.engine.test_mpi_backend import BIN, environment
from tests.programs import ROOT

LAUNCHES = 30  # at most: one more for each test that breaks its ranks
SECONDS = 1500  # of a launch
# in seconds: those whose kind has failed before, and each collective once
SOME = (
    "test_all_reduce_sum", "test_all_reduce_coalesced_sum", "test_all_reduce_full_group_max",
    "test_all_gather", "test_all_gather_coalesced_simple", "test_all_gather_object_default_pg",
    "test_all_to_all_single_equal_split", "test_all_to_all_single_unequal_split",
    "test_barrier", "test_barrier_timeout_full_group", "test_broadcast",
    "test_ddp_hook_parity_powerSGD", "test_gather", "test_gather_object", "test_isend",
    "test_irecv", "test_reduce_sum", "test_scatter", "test_scatter_object_list", "test_send_recv",
    "test_send_recv_any_source", "test_send_recv_with_tag", "test_sparse_all_reduce_sum",
)  # fmt: skip
# what passes with gloo and need not with impi, and why
GLOO_ONLY = "torch has it for gloo only, and refuses it for all other backends"
MAY_FAIL = {
    "test_get_backend": "it compares the backend's name with gloo",
    "test_monitored_barrier_gloo": GLOO_ONLY,
    "test_monitored_barrier_gloo_rank_0_timeout": GLOO_ONLY,
    "test_monitored_barrier_gloo_subgroup": GLOO_ONLY,
    "test_ddp_profiling_torch_profiler": "an event of what is complete at once is not async",
}


def results(backend: str, ranks: int, folder: Path, *names: str) -> dict[str, str]:
    """How each test ended: passed, skipped, stuck, crashed, or failed and why."""
    for name in ("barrier", "test_dir", "init_dir"):
        (folder / name).mkdir(parents=True)
    found, running = folder / "results", folder / "running"
    found.touch()
    program = (sys.executable, "-W", "ignore", "-m", "tests.engine.torch_suite", backend)
    for _ in range(LAUNCHES):
        done = subprocess.run(
            [BIN / "mpirun", "-n", str(ranks), *program, str(folder), *names],
            env=environment(), cwd=ROOT, text=True, timeout=SECONDS, check=False,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        ends = dict(line.split(" ", 1) for line in found.read_text().splitlines())
        if done.stdout.count("is done") == ranks:
            return ends
        assert running.exists(), done.stdout
        if running.read_text() not in ends:
            with found.open("a") as file:
                file.write(f"{running.read_text()} crashed\n")
    raise AssertionError(f"{len(ends)} tests in {LAUNCHES} launches: {done.stdout}")


@pytest.mark.long
def test_torchs_tests_of_each_kind_pass(tmp_path: Path) -> None:
    ends = results("impi", 2, tmp_path, *SOME)
    assert {name: end for name, end in ends.items() if end != "passed"} == {}
    assert ends.keys() == set(SOME)


@pytest.mark.long
def test_torchs_tests_that_pass_with_gloo_pass_with_impi(tmp_path: Path) -> None:
    gloo, impi = (results(backend, 3, tmp_path / backend) for backend in ("gloo", "impi"))
    passed = {name for name, end in gloo.items() if end == "passed"}
    assert len(passed) > 150
    worse = {name: impi[name] for name in passed if impi[name] != "passed"}
    assert worse.keys() <= MAY_FAIL.keys(), worse
