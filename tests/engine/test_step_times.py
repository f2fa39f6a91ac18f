"""Times that ranks report: waiting for slower ranks, the exchange, and making batches."""

import time
from pathlib import Path

import pytest
import torch

from ftcluster_common.protocol.rank_times import RankTimes, interval_between
from ftcluster_train.comm.traffic import Traffic
from ftcluster_train.comm.world import World
from ftcluster_train.engine.step_times import StepTimes
from ftcluster_train.health.host_benchmark import matmul_gflops, matmul_shapes, weights_of
from tests.engine.models import make_model
from tests.engine.ranks import on_ranks

STEPS = 4
INPUT, EXCHANGE, SLOWER = 0.02, 0.01, 0.05  # seconds per step


def _report(rank: int, size: int) -> tuple[float, dict[str, object]]:
    """Ranks are slow in turns, so the sums of their waits do not reveal the exchange."""
    traffic = Traffic()
    times = StepTimes(traffic, World(rank, size, "gloo"))
    found: tuple[float, dict[str, object]] = (0.0, {})
    for step in range(STEPS):
        with times:
            time.sleep(INPUT * (rank + 1))
        traffic.waited += EXCHANGE + (SLOWER if step % size == rank else 0.0)
        times.end_step(rank + 1.0, tokens=100)
        if step % 2:
            found = times.over_ranks()
    return found


def test_waiting_for_ranks_is_told_from_the_exchange(tmp_path: Path) -> None:
    (loss, fields), (_, same) = on_ranks(_report, 2, tmp_path)
    assert loss == 3.0
    assert fields | {"train_seconds": 0} == same | {"train_seconds": 0}
    assert fields["useful_tokens"] == STEPS * 100
    event = {"step": STEPS, "time": 0.0, **fields}
    found = interval_between(None, event)
    assert found.steps == STEPS
    for rank, times in enumerate(found.ranks):
        assert isinstance(times, RankTimes)
        assert times.communication == pytest.approx(STEPS * EXCHANGE)
        assert times.waiting == pytest.approx(STEPS / 2 * SLOWER)
        assert STEPS * INPUT * (rank + 1) <= times.input < STEPS * INPUT * (rank + 2)


@pytest.mark.parametrize("kind", ["gpt2", "bert"])
def test_the_weights_of_products(kind: str) -> None:
    model = make_model(kind, "causal-lm" if kind == "gpt2" else "text-classification")
    shapes = matmul_shapes(model)
    matrices = sum(
        weight.numel()
        for name, weight in model.named_parameters()
        if weight.dim() == 2 and "embed" not in name and ".wte" not in name and ".wpe" not in name
    )
    # the shared weights of embedding and head
    head = model.config.hidden_size * model.config.vocab_size if kind == "gpt2" else 0
    assert weights_of(shapes) == matrices + head
    assert matmul_gflops(shapes, 64, torch.bfloat16) > 0
    assert matmul_gflops({}, 64, torch.float32) == 0
