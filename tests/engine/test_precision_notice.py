"""A run reports if the CPU multiplies matrices faster in the other precision."""

from dataclasses import replace
from pathlib import Path

import pytest

from ftcluster_kernels import products
from ftcluster_kernels.cpu import cpuinfo_field
from ftcluster_train.engine.rank import precision_notice
from tests.engine.jobs import make_job

pytestmark = pytest.mark.usefixtures("world")
SHAPES, TOKENS = {(768, 768): 24}, 512


SLOW, FAST = 1e-3, 1e9  # GFLOP/s that no CPU has in either precision


def notice(folder: Path, precision: str, gflops: float, wanted: str = "auto") -> str:
    """Return the notice of a run in this precision, whose recipe has the wanted precision.

    Args:
        gflops: rate of the run's own matmuls; the rate of the other precision is measured.
    """
    job = make_job(folder, "text-classification")
    job = replace(job, precision=precision, recipe=replace(job.recipe, precision=wanted))
    return precision_notice(job, SHAPES, TOKENS, gflops)


@pytest.mark.parametrize(("precision", "other"), [("bf16", "fp32"), ("fp32", "bf16")])
def test_the_faster_precision_is_named(tmp_path: Path, precision: str, other: str) -> None:
    assert notice(tmp_path, precision, FAST) == ""
    is_unsure = "avx512_bf16" in cpuinfo_field("flags").split() and not products.has_amx()
    text = notice(tmp_path, precision, SLOW)
    if is_unsure:
        assert text.endswith(f"times as fast in {other} as in {precision}: set precision={other}")
    else:
        assert text == ""


def test_a_recipe_that_wants_fp32_gets_no_notice(tmp_path: Path) -> None:
    assert notice(tmp_path, "fp32", SLOW, "fp32") == ""
