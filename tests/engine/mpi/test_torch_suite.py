"""torch's own tests of a backend pass with impi if they pass with gloo; see torch_suite.py."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.engine.mpi.test_mpi_backend import BIN, environment
from tests.programs import ROOT

LAUNCHES = 30  # maximum, because each test that breaks its ranks needs another launch
SECONDS = 3600  # limit of a launch
# tests in CI: each collective on two ranks, DDP, and tests that failed before
IN_CI = (
    "accumulate_gradients_no_sync", "all_gather", "all_gather_coalesced_simple",
    "all_gather_object_default_pg", "all_reduce_coalesced_sum", "all_reduce_full_group_min",
    "all_reduce_max", "all_reduce_product", "all_reduce_sum", "all_reduce_sum_async",
    "all_reduce_sum_complex", "all_to_all_single_equal_split", "all_to_all_single_unequal_split",
    "barrier", "broadcast", "coalescing_manager",
    "coalescing_manager_async", "ddp_grad_div_uneven_inputs", "ddp_hook_parity_allreduce",
    "ddp_hook_parity_powerSGD", "ddp_uneven_input_exception", "gather", "gather_checks",
    "gather_object", "get_future", "irecv", "isend", "post_localSGD_optimizer_parity",
    "reduce_max", "reduce_sum", "scatter", "scatter_checks", "scatter_object_list", "send_recv",
    "send_recv_any_source", "send_recv_with_tag", "sparse_all_reduce_sum",
)  # fmt: skip
# tests that pass with gloo but not with impi, with the reasons
GLOO_ONLY = "torch has it for gloo only, and refuses it for all other backends"
MAY_FAIL = {
    "test_monitored_barrier_gloo": GLOO_ONLY,
    "test_monitored_barrier_gloo_rank_0_timeout": GLOO_ONLY,
    "test_monitored_barrier_gloo_subgroup": GLOO_ONLY,
}


def results(backend: str, ranks: int, folder: Path, pattern: str) -> dict[str, str]:
    """Return the result of each test: passed, skipped, stuck, crashed, or failed and why."""
    (folder / "test_dir").mkdir(parents=True)
    found, running = folder / "results", folder / "running"
    found.touch()
    program = (sys.executable, "-W", "ignore", "-m", "tests.engine.mpi.torch_suite", backend)
    for _ in range(LAUNCHES):
        done = subprocess.run(
            [BIN / "mpirun", "-n", str(ranks), *program, str(folder), pattern],
            env=environment(), cwd=ROOT, text=True, timeout=SECONDS, check=False,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        ends = {}
        for line in found.read_text().splitlines():
            name, _, ends[name] = line.split(" ", 2)
        if done.stdout.count("is done") == ranks:
            return ends
        assert running.exists(), done.stdout
        if running.read_text() not in ends:
            with found.open("a") as file:
                file.write(f"{running.read_text()} 0 crashed\n")
        print(done.stdout)
    raise AssertionError(f"{len(ends)} tests in {LAUNCHES} launches")


def compare(ranks: int, folder: Path, pattern: str) -> tuple[set[str], dict[str, str]]:
    """Return the tests that pass with gloo and fail with impi, with their results."""
    gloo, impi = (results(one, ranks, folder / one, pattern) for one in ("gloo", "impi"))
    passed = {name for name, end in gloo.items() if end == "passed"}
    return passed, {name: impi[name] for name in passed if impi[name] != "passed"}


@pytest.mark.more
def test_torchs_tests_of_each_call_pass_with_impi(tmp_path: Path) -> None:
    found = results("impi", 2, tmp_path, f"test_({'|'.join(IN_CI)})")
    assert found == {f"test_{name}": "passed" for name in IN_CI}


@pytest.mark.long
@pytest.mark.parametrize("ranks", [2, 3])
def test_all_of_torchs_tests_that_pass_with_gloo_pass_with_impi(tmp_path: Path, ranks: int) -> None:
    passed, worse = compare(ranks, tmp_path, "test_.*")
    assert len(passed) > 150
    # tests that pass now must keep passing
    assert worse.keys() == MAY_FAIL.keys(), worse
