"""Ranks of verify on this machine."""

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from ftcluster_common.protocol.launch import Host
from ftcluster_train.health.consistency import expected_kernel
from ftcluster_train.health.host_benchmark import kernel_used, measure_speed, share_of_peak
from ftcluster_train.health.peak import LOOPS, instruction_sets, peak_rate
from ftcluster_train.health.probe import ProbeRequest, cpu_flags, examine
from ftcluster_train.supervisor.supervisor import free_port
from tests.engine.forks import start


def _rank(rank: int, folder: Path, request: ProbeRequest, port: int) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    answer: dict[str, Any] = {}
    examine(request, rank, answer)
    (folder / str(rank)).write_text(json.dumps(answer))


def test_links_are_measured_where_an_interface_has_a_known_speed(tmp_path: Path) -> None:
    hosts = (Host("a", "127.0.0.1"), Host("b", "127.0.0.1"))
    request = ProbeRequest(hosts, "", "", mbits={"a": {"lo": 1000, "eth0": 10}, "b": {}})
    start(_rank, 2, tmp_path, request, free_port())
    first, second = (json.loads((tmp_path / str(rank)).read_text()) for rank in (0, 1))
    assert (first["interface_mbits"], second["interface_mbits"]) == (1000, None)
    [link] = first["links"]
    assert link["ranks"] == [0, 1]
    assert link["mb_per_second"] > 1
    assert "speed" not in first  # speeds are not measured, which would take longer


def test_each_precision_has_the_kernel_that_this_cpu_promises() -> None:
    flags = cpu_flags()
    in_fp32 = expected_kernel([flag for flag in flags if flag in ("avx512f", "avx2")])
    before = torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            assert in_fp32 in kernel_used(bf16=False) != ""
            if {"amx_bf16", "avx512_bf16"} & {*flags}:
                assert expected_kernel(flags) in kernel_used(bf16=True)
    finally:
        torch.set_num_threads(before)


def test_products_are_put_beside_what_the_instructions_do_at_most(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    here = instruction_sets()
    assert {"avx2", "avx512f"} & {*here}
    assert all(0 < peak_rate(name, 1, 0.01) < math.inf for name in here)
    bf16 = any(LOOPS[name].bf16 for name in here)
    speed = measure_speed(1, bf16)
    assert {"bf16_of_peak", "fp32_of_peak"} < speed.keys()
    assert speed["bf16_of_peak"] is None or bf16
    rate = peak_rate("avx2", 1, 0.2) / 1e9
    assert 0 < (share_of_peak(rate / 2, "fp32", 1) or 0) <= 1
    assert share_of_peak(100 * rate, "fp32", 1) is None  # the CPU lacks instructions for the loops
    # a stack that was built without a C compiler
    monkeypatch.setattr("ftcluster_train.health.peak.KERNELS", tmp_path)
    assert share_of_peak(100.0, "fp32", 1) is None
