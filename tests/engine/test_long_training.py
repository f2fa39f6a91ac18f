"""Rank 0 needs no more memory or files after a thousand steps and 120,000 reports."""

import os
from pathlib import Path

import pytest

from ftcluster_train.comm.world import World
from ftcluster_train.io import rank_status
from tests.engine.jobs import make_job, make_samples, run
from tests.engine.models import make_model

STEPS, FIRST_LOOK = 1200, 300
REPORTS = 120_000
MOST_BYTES = 2 << 20  # 2 kB per step


def used() -> tuple[int, int]:
    """Return the number of open files, and the resident memory in bytes."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return len(list(Path("/proc/self/fd").iterdir())), pages * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.long
def test_rank_0_does_not_grow(
    tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Log each step and save some steps."""
    job = make_job(
        tmp_path, "text-classification", max_steps=STEPS, save_strategy="steps",
        save_steps=FIRST_LOOK // 2, save_total_limit=2,
    )  # fmt: skip
    reads, writes = os.pipe()
    os.set_blocking(reads, False)
    monkeypatch.setenv(rank_status.PROGRESS_VARIABLE, str(writes))
    looks, step = [], 0

    def after_a_step() -> bool:
        nonlocal step
        for _ in range(REPORTS // STEPS):
            rank_status.report(step, "forward")
        assert os.read(reads, 1 << 16)
        step += 1
        if step in (FIRST_LOOK, STEPS):
            looks.append(used())
        return False

    done = run(
        job, make_model("bert"), make_samples("text-classification", 64), world,
        stop_asked=after_a_step,
    )  # fmt: skip
    assert len(done.losses) == STEPS
    (files, memory), (files_after, memory_after) = looks
    assert files_after == files
    assert memory_after - memory < MOST_BYTES
