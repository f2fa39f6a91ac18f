"""What the tests of the training engine share."""

import os
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from transformers.utils import logging

from ftcluster_train import rank
from ftcluster_train.distributed.world import World


@pytest.fixture(scope="session", autouse=True)
def quiet() -> None:
    logging.set_verbosity_error()
    logging.disable_progress_bar()


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """This process as the only rank."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    meeting = tmp_path_factory.mktemp("world") / "meeting"
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=0, world_size=1)
    yield World(rank=0, size=1, backend="gloo")
    dist.destroy_process_group()


@pytest.fixture
def one_world(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a rank that runs in this process joins."""
    monkeypatch.setattr(rank, "join_world", lambda: world)
    monkeypatch.setattr(rank, "leave_world", lambda: None)
