"""Fixtures of the training engine's tests."""

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

# Set these variables first, because the libraries read them during their import.
HOME = tempfile.mkdtemp(prefix="ftcluster-engine-")
os.environ |= {
    "HOME": HOME,
    "XDG_CACHE_HOME": HOME,
    "HF_HOME": HOME,
    "HF_HUB_OFFLINE": "1",
    # with more threads, such small models would only wait for threads
    "OMP_NUM_THREADS": "1",
    "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
}

import pytest  # noqa: E402 - it has loaded none of them

from tests import rights  # noqa: E402
from tests.engine import amx  # noqa: E402

if TYPE_CHECKING:  # not imported at once, because xdist's first process does not use torch
    from ftcluster_train.comm.world import World


def pytest_unconfigure() -> None:
    shutil.rmtree(HOME, ignore_errors=True)


@pytest.fixture(scope="session", autouse=True)
def quiet() -> None:
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()


@pytest.fixture(autouse=True)
def seed() -> None:
    import torch

    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def tiles(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip tests of AMX if the CPU has no AMX."""
    needed = {right for mark in request.node.iter_markers("needs") for right in mark.args}
    if "amx" in needed and not rights.has_flag("amx_bf16"):
        amx.emulate(monkeypatch)


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[World]":
    """Set up this process as the only rank."""
    import torch.distributed as dist

    from ftcluster_train.comm.world import World

    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    meeting = tmp_path_factory.mktemp("world") / "meeting"
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=0, world_size=1)
    yield World(rank=0, size=1, backend="gloo")
    dist.destroy_process_group()


@pytest.fixture
def one_world(world: "World", monkeypatch: pytest.MonkeyPatch) -> None:
    """Set up the process group that a rank in this process joins."""
    from ftcluster_train.engine import rank

    monkeypatch.setattr(rank, "join_world", lambda: world)
    monkeypatch.setattr(rank, "leave_world", lambda: None)
