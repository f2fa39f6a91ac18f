"""torch's own tests of a backend pass with impi as they pass with gloo; see torch_suite.py."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.engine.test_mpi_backend import BIN, environment
from tests.programs import ROOT

LAUNCHES = 30  # at most: one more for each test that breaks its ranks
SECONDS = 3600  # of a launch
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
# what passes with gloo and not with impi, and why
GLOO_ONLY = "torch has it for gloo only, and refuses it for all other backends"
MAY_FAIL = {
    "test_monitored_barrier_gloo": GLOO_ONLY,
    "test_monitored_barrier_gloo_rank_0_timeout": GLOO_ONLY,
    "test_monitored_barrier_gloo_subgroup": GLOO_ONLY,
}


def results(ranks: int, folder: Path, *names: str) -> dict[str, dict[str, str]]:
    """By backend and test, how it ended: passed, skipped, stuck, crashed, or failed and why."""
    for name in ("barrier", "test_dir", "rendezvous"):
        (folder / name).mkdir(parents=True)
    found, running = folder / "results", folder / "running"
    found.touch()
    program = (sys.executable, "-W", "ignore", "-m", "tests.engine.torch_suite")
    for _ in range(LAUNCHES):
        done = subprocess.run(
            [BIN / "mpirun", "-n", str(ranks), *program, str(folder), *names],
            env=environment(), cwd=ROOT, text=True, timeout=SECONDS, check=False,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        ends: dict[str, dict[str, str]] = {"gloo": {}, "impi": {}}
        for line in found.read_text().splitlines():
            backend, name, _, end = line.split(" ", 3)
            ends[backend][name] = end
        if done.stdout.count("is done") == ranks:
            return ends
        assert running.exists(), done.stdout
        backend, name = running.read_text().split()
        if name not in ends[backend]:
            with found.open("a") as file:
                file.write(f"{backend} {name} 0 crashed\n")
            (folder / f"{backend} {name}").write_text(done.stdout)
    raise AssertionError(f"{ends} in {LAUNCHES} launches: {done.stdout}")


@pytest.mark.more
def test_torchs_tests_of_each_kind_pass(tmp_path: Path) -> None:
    ends = results(2, tmp_path, *SOME)
    for of_backend in ends.values():
        assert of_backend == dict.fromkeys(sorted(SOME), "passed")


@pytest.mark.long
@pytest.mark.parametrize("ranks", [2, 3])
def test_torchs_tests_that_pass_with_gloo_pass_with_impi(tmp_path: Path, ranks: int) -> None:
    ends = results(ranks, tmp_path)
    passed = {name for name, end in ends["gloo"].items() if end == "passed"}
    assert len(passed) > 150
    worse = {name: ends["impi"][name] for name in passed if ends["impi"][name] != "passed"}
    # neither more than these, nor less: what passes by now has to go on passing
    assert worse.keys() == MAY_FAIL.keys(), worse
