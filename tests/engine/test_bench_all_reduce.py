"""Two ranks of `bench allreduce` on this machine."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from ftcluster_common.events import is_event
from ftcluster_train.errors import TrainError
from ftcluster_train.verification.all_reduce_benchmark import TURNS, measure
from tests.engine.ranks import on_ranks
from tests.engine.test_mpi_backend import BIN, environment

BACKENDS = ["gloo", "impi", "mpi"]


def test_each_size_is_measured_by_each_backend(tmp_path: Path) -> None:
    request = {"sizes": [2 << 20, 4096], "backends": BACKENDS, "seconds": 30}
    program = [sys.executable, "-W", "ignore", "-m", "ftcluster_train.bench_all_reduce"]
    done = subprocess.run(
        [BIN / "mpirun", "-n", "2", *program, tmp_path, json.dumps(request)],
        env=environment() | {"MASTER_ADDR": "127.0.0.1", "FTCLUSTER_BACKEND": "impi"},
        text=True, timeout=60, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "")
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert all(is_event(event["event"], event) for event in events)
    found = [event for event in events if event["event"] == "all_reduce"]
    assert [(one["bytes"], one["type"]) for one in found] == [
        (4096, "fp32"), (4096, "bf16"), (2 << 20, "fp32"), (2 << 20, "bf16"),
    ]  # fmt: skip
    for one in found:
        assert list(one["milliseconds"]) == BACKENDS
        assert all(0 < ms < 10_000 for ms in one["milliseconds"].values())
        assert TURNS[0] <= one["turns"] <= TURNS[1]


def with_little_time(rank: int, size: int) -> list[object]:
    assert (rank, size) in ((0, 2), (1, 2))
    found = list(measure({"gloo": dist.all_reduce}, [4096, 1 << 20, 1 << 40], 5.0))
    return [[one.bytes, one.type, bool(one.left_out), bool(one.milliseconds)] for one in found]


def test_a_size_that_would_take_too_long_is_left_out(tmp_path: Path) -> None:
    for of_rank in on_ranks(with_little_time, 2, tmp_path):
        assert of_rank == [
            [size, kind, size == 1 << 40, size < 1 << 40]
            for size in (4096, 1 << 20, 1 << 40)
            for kind in ("fp32", "bf16")
        ]


def with_a_wrong_sum(rank: int, size: int) -> str:
    def forget(tensor: torch.Tensor) -> None:
        if rank != 1:
            tensor.fill_(size)

    with pytest.raises(TrainError) as caught:
        list(measure({"gloo": dist.all_reduce, "wrong": forget}, [4096], 5.0))
    return caught.value.message


def test_a_wrong_sum_is_an_error_on_every_rank(tmp_path: Path) -> None:
    said = on_ranks(with_a_wrong_sum, 2, tmp_path)
    assert said == ["the sum of wrong is wrong on ranks [1]"] * 2
