"""A rank reports the waiting time for slower ranks and the bytes that it sends."""

import time

import pytest
import torch
from transformers import PreTrainedModel

from ftcluster_common.recipe import Training
from ftcluster_train.engine.optim.flat_step import FlatOptimizerStep
from ftcluster_train.engine.optim.sharded_step import ShardedOptimizerStep
from tests.engine.models import make_model
from tests.engine.ranks import on_ranks

STEPS, SLOWER = 3, 0.2  # seconds that the second rank computes longer in each step
MODES = [(sharded, dtype) for sharded in (False, True) for dtype in ("fp32", "bf16")]


def _train(rank: int, size: int) -> list[tuple[float, float, int]]:
    """Return by mode: seconds waited, bytes sent per step, and parameters."""
    found = []
    for sharded, dtype in MODES:
        model: PreTrainedModel = make_model("gpt2", "causal-lm")
        settings = Training(gradient_dtype=dtype)
        step = (
            ShardedOptimizerStep(model, settings, torch.bfloat16, 1)
            if sharded
            else FlatOptimizerStep(model, settings, torch.bfloat16, size)
        )
        tokens = torch.ones(2, 8, dtype=torch.int64)
        sent = waited = 0.0
        for number in range(STEPS + 1):
            sent = step.traffic.sent
            if number == 1:  # the first step also includes torch's loading of code
                waited = step.traffic.waited
            time.sleep(SLOWER * rank)
            with torch.autocast("cpu", torch.bfloat16):
                loss = model(input_ids=tokens, labels=tokens).loss
            step.backward(loss, last=True)
            step.step()
        parameters = sum(p.numel() for p in model.parameters())
        found.append((step.traffic.waited - waited, step.traffic.sent - sent, parameters))
    return found


@pytest.fixture(scope="module")
def of_ranks(tmp_path_factory: pytest.TempPathFactory) -> list[list[tuple[float, float, int]]]:
    return on_ranks(_train, 2, tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("number", range(len(MODES)), ids=lambda n: "-".join(map(str, MODES[n])))
def test_the_faster_rank_waits(of_ranks: list[list[tuple[float, float, int]]], number: int) -> None:
    (waits, sent, parameters), (slow_waits, same, _) = (found[number] for found in of_ranks)
    assert waits > 0.6 * STEPS * SLOWER
    assert slow_waits < 0.5 * STEPS * SLOWER
    assert sent == same
    sharded, dtype = MODES[number]
    of_gradient = 2 if dtype == "bf16" else 4
    # two ranks: an all-reduce sends all bytes; a reduce-scatter and an all-gather of weights each
    # send half
    least = parameters * ((of_gradient + 2) / 2 if sharded else of_gradient)
    assert least <= sent < 1.3 * least + 1000
