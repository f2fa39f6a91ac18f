"""Processes that exchange gradients, and the state that they learn."""

import contextlib
import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal
from unittest.mock import patch

import torch
import torch.distributed as dist

from ftcluster_common.recipe import Training
from ftcluster_train.comm import reduce_scatter
from ftcluster_train.engine.data.sampler import micro_batches, share_of_rank
from ftcluster_train.engine.optim import gradient_buckets, sharded_weights
from ftcluster_train.engine.optim.base import State
from ftcluster_train.engine.optim.flat_step import FlatOptimizerStep
from ftcluster_train.engine.optim.sharded_step import ShardedOptimizerStep
from ftcluster_train.patching import fp32_residuals
from ftcluster_train.patching.kernel_mode import KernelMode
from tests.engine.forks import start
from tests.engine.models import VOCABULARY, make_model

Work = Callable[..., Any]  # rank and size are the first arguments
LENGTH = 12
SAMPLES = 64


@dataclass(frozen=True)
class Case:
    """A case of some training steps.

    Attributes:
        batches: samples of each step, by number.
        bucket: elements that are shared at once; 0 for the usual number.
        parts: the number of parts in which a rank's share is computed.
        dtype: the dtype in which the model computes.
        unused: layers that rank 1 does without, as an architecture may that chooses its way.
        sharded: whether the optimizer is.
        sent: the dtype of gradients on the wire.
        rows: whether embeddings have gradients of rows only.
        frozen: whether a layer of the model is not trained.
    """

    batches: Sequence[Sequence[int]]
    bucket: int = 0
    parts: int = 1
    dtype: torch.dtype = torch.float32
    unused: bool = False
    sharded: bool = False
    sent: Literal["auto", "fp32", "bf16"] = "auto"
    rows: bool = False
    frozen: bool = False


@dataclass(frozen=True)
class Learned:
    """The state of a rank after a case.

    Attributes:
        tensors: the whole state, by name.
        own_bytes: bytes of the state on this rank.
        buffers: memory for gradients on their way, in buckets.
    """

    tensors: dict[str, torch.Tensor]
    losses: list[float]
    norms: list[float]
    digest: str
    buckets: int
    own_bytes: int
    buffers: int = 0

    @property
    def master_weights(self) -> torch.Tensor:
        return self.tensors["master_weights"]


@contextlib.contextmanager
def weights_that_wait() -> Iterator[None]:
    """Check that sharded weights arrive when they are waited for, and not earlier."""

    def start(whole: torch.Tensor, piece: torch.Tensor) -> Any:
        arrived = torch.empty_like(whole)
        work = reduce_scatter.start_all_gather(arrived, piece.clone())

        def wait() -> None:
            work.wait()
            whole.copy_(arrived)

        return SimpleNamespace(wait=wait)

    sharded_weights.start_all_gather = start
    try:
        yield
    finally:
        sharded_weights.start_all_gather = reduce_scatter.start_all_gather


@patch.object(fp32_residuals, "MANY_ELEMENTS", 0)
def learn(case: Case, rank: int, size: int) -> Learned:
    """Train the steps of a case as one of `size` ranks."""
    usual, table = gradient_buckets.BUCKET, gradient_buckets.TABLE
    gradient_buckets.BUCKET = case.bucket or usual
    gradient_buckets.TABLE = 0 if case.rows else table
    try:
        model = make_model("gpt2", "causal-lm")
        spare = torch.nn.Linear(5, 3)
        torch.nn.init.constant_(spare.weight, 0.5)
        torch.nn.init.constant_(spare.bias, 0.5)
        model.spare = spare
        # the epsilon is so large that rounding is not amplified where the exact gradient is 0
        settings = Training(
            learning_rate=1e-2, weight_decay=0.1, max_grad_norm=0.5, adam_epsilon=1e-3,
            gradient_dtype=case.sent,
        )  # fmt: skip
        if case.frozen:
            model.transformer.h[0].requires_grad_(False)
        update = (
            ShardedOptimizerStep(model, settings, case.dtype, case.parts)
            if case.sharded
            else FlatOptimizerStep(model, settings, case.dtype, size)
        )
    finally:
        gradient_buckets.BUCKET, gradient_buckets.TABLE = usual, table
    tokens = torch.randint(
        VOCABULARY, (SAMPLES, LENGTH), generator=torch.Generator().manual_seed(3)
    )
    model.eval()
    norms, losses = [], []
    overrides = contextlib.nullcontext()
    if case.rows:
        overrides = KernelMode(context=update.context)
    autocast = case.rows and case.dtype == torch.bfloat16
    for batch in case.batches:
        losses.append(0.0)
        parts = micro_batches(share_of_rank(batch, rank, size), case.parts)
        for part in parts:
            own = tokens[part]
            if not case.rows:
                update.pending_gathers.wait()
            with overrides, torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                loss = model(input_ids=own, labels=own).loss * len(part) / len(batch)
                if case.unused and rank == 0:
                    loss = loss + model.spare.weight.sum() * 1e-3
                update.backward(loss, last=part is parts[-1])
            losses[-1] += loss.item()
        norms.append(update.step())
    sharded = isinstance(update, ShardedOptimizerStep)
    buckets = update.weights.buckets if sharded else update.gradients.buckets
    buffers = sum(map(len, update.gradients._free.values())) if sharded else 0
    state = update.state()
    return Learned(
        whole_tensors(state), losses, norms, update.digest(), len(buckets), state.own_nbytes,
        buffers,
    )  # fmt: skip


def whole_tensors(state: State) -> dict[str, torch.Tensor]:
    """Return copies of a state's tensors; every rank must call this function."""
    flat = torch.cat([piece.flatten().double() for piece in state.pieces()])
    sizes = [math.prod(shape) for _, shape in state.header.values()]
    parts = flat.split(sizes)
    return {
        name: part.to(dtype).view(shape)
        for (name, (dtype, shape)), part in zip(state.header.items(), parts, strict=True)
    }


def _rank(rank: int, size: int, folder: Path, work: Work, arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{folder / 'meeting'}", rank=rank,
                            world_size=size)  # fmt: skip
    torch.save(work(rank, size, *arguments), folder / f"{rank}")
    dist.barrier()
    dist.destroy_process_group()


def learn_all(rank: int, size: int, cases: dict[str, Case]) -> dict[str, Learned]:
    """Train the steps of several cases."""
    with weights_that_wait():
        return {name: learn(case, rank, size) for name, case in cases.items()}


def on_ranks(work: Work, size: int, folder: Path, *arguments: Any) -> list[Any]:
    """Return the results of `work(rank, size, ...)` on each of `size` new processes."""
    start(_rank, size, size, folder, work, arguments)
    return [torch.load(folder / f"{rank}", weights_only=False) for rank in range(size)]
