"""The measurements of `bench allreduce`; tests/cluster runs the whole command."""

from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from ftcluster_train.errors import TrainError
from ftcluster_train.health.bench_all_reduce import measure
from tests.engine.ranks import on_ranks


def with_little_time(rank: int, size: int) -> list[object]:
    assert (rank, size) in ((0, 2), (1, 2))
    found = list(measure({"gloo": dist.all_reduce}, [4096, 1 << 20, 1 << 40], 2.0))
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
