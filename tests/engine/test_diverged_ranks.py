"""Ranks whose parameters differ are named."""

from pathlib import Path

import pytest
import torch

from ftcluster_train.comm.world import check_equal_on_ranks
from ftcluster_train.engine.optim.flat_params import FlatWeights
from ftcluster_train.errors import TrainError
from tests.engine.ranks import on_ranks


def message_after_a_change(rank: int, _: int) -> str:
    torch.manual_seed(0)
    weights = FlatWeights(torch.nn.Linear(8, 8), torch.bfloat16)
    check_equal_on_ranks(weights.digest(), 1)
    weights.master_weights[30] += 1e-7 * (rank == 1)
    with pytest.raises(TrainError) as raised:
        check_equal_on_ranks(weights.digest(), 20)
    return raised.value.message


def test_every_rank_stops_and_names_those_that_differ(tmp_path: Path) -> None:
    for message in on_ranks(message_after_a_change, 3, tmp_path):
        assert (
            "after step 20, the parameters on ranks [1] differ from the parameters on ranks [0, 2]"
            in message
        )
