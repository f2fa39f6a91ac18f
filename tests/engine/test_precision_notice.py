"""A run reports if the CPU multiplies matrices faster in the other precision."""

import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ftcluster_kernels import products
from ftcluster_kernels.cpu import cpuinfo_field
from ftcluster_train.engine.rank import DTYPES, MUCH_FASTER, precision_notice
from ftcluster_train.health.host_benchmark import matmul_gflops
from tests.engine.jobs import make_job

pytestmark = pytest.mark.usefixtures("world")
SHAPES, TOKENS = {(768, 768): 24}, 512


def seconds(dtype: torch.dtype) -> float:
    """Return the best time of torch's linear layer."""
    inputs, weight = torch.randn(TOKENS, 768, dtype=dtype), torch.randn(768, 768, dtype=dtype)
    times = []
    for _ in range(20):
        began = time.perf_counter()
        torch.nn.functional.linear(inputs, weight)
        times.append(time.perf_counter() - began)
    return min(times)


def notice(folder: Path, precision: str, wanted: str = "auto") -> str:
    """Return the notice of a run in this precision, whose recipe has the wanted precision."""
    job = make_job(folder, "text-classification")
    job = replace(job, precision=precision, recipe=replace(job.recipe, precision=wanted))
    return precision_notice(job, SHAPES, TOKENS, matmul_gflops(SHAPES, TOKENS, DTYPES[precision]))


@pytest.mark.parametrize(("precision", "other"), [("bf16", "fp32"), ("fp32", "bf16")])
def test_the_faster_precision_is_named(tmp_path: Path, precision: str, other: str) -> None:
    text = notice(tmp_path, precision)
    is_unsure = "avx512_bf16" in cpuinfo_field("flags").split() and not products.has_amx()
    ratio = seconds(DTYPES[precision]) / seconds(DTYPES[other])
    if is_unsure and ratio > MUCH_FASTER * 1.25:
        assert text.endswith(f"times as fast in {other} as in {precision}: set precision={other}")
    elif not is_unsure or ratio < MUCH_FASTER / 1.25:
        assert text == ""


def test_a_recipe_that_wants_fp32_gets_no_notice(tmp_path: Path) -> None:
    assert notice(tmp_path, "fp32", "fp32") == ""
