"""Collectives on the tensors of a training, and what they send and wait for.

Sums have bf16 or int8 on the wire, and fp32 in the sum.

Each rank sends every other rank its piece of a tensor, and each sums what it has received, in fp32
and in the order of the ranks. A value is rounded before it is sent, and a sum is not rounded again.
With gloo this is also the fastest reduce-scatter: its own is an all-reduce (torch 2.13), three
times as slow.

A communication hook for torch's DistributedDataParallel in a user's script.

    from ftcluster_train.comm.collectives import bf16_hook
    model.register_comm_hook(None, bf16_hook)

Half of the bytes of DDP's own all-reduce. torch's `bf16_compress_hook` is refused on CPUs, and sums
in bf16.
"""

import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import Any, Literal

import torch
import torch.distributed as dist

BLOCK = 256  # values of int8 with a common scale, which adds 1.6 % of bytes
CHUNK = 1 << 22  # elements that are sent at once


class Traffic:
    """What one rank sends since the training began; a context manager around each wait.

    Attributes:
        waited: seconds in which the rank was blocked in collectives on gradients and weights, also
            because another rank was slower. What moves while it computes is not in it.
        sent: bytes of them that it has sent, as many as each rank has to at least: of an all-reduce
            of S bytes over n ranks 2 (n - 1) / n S, of a reduce-scatter or all-gather half of that
            (Thakur, Rabenseifner and Gropp 2005, Optimization of Collective Communication
            Operations in MPICH).
        collectives: the number of them; an all-reduce in bf16 is two.
    """

    def __init__(self) -> None:
        self.waited, self.sent, self.collectives = 0.0, 0.0, 0
        self._began = 0.0

    def __enter__(self) -> None:
        self._began = time.perf_counter()

    def __exit__(self, *_: Any) -> None:
        self.waited += time.perf_counter() - self._began

    def add(self, size: int, ranks: int, passes: int = 1) -> None:
        """Count a collective on so many bytes of all ranks together.

        Args:
            passes: 2 for an all-reduce, 1 for others.
        """
        self.collectives += 1
        self.sent += passes * (ranks - 1) / ranks * size


# torch 2.13 has another name for it, and warns of this one
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


class ReduceScatter:
    """A reduce-scatter that is under way.

    Args:
        sent: shape (ranks * piece,), in the dtype that is sent; unchanged until `wait` returns.
        received: like `sent`, to be written.
    """

    def __init__(
        self, sent: torch.Tensor, received: torch.Tensor, group: dist.ProcessGroup | None = None
    ) -> None:
        self.sent, self.received = sent, received
        self._work = dist.all_to_all_single(received, sent, group=group, async_op=True)

    def wait(self) -> None:
        """Until this rank has the others' pieces."""
        self._work.wait()

    def sum(self, total: torch.Tensor, add: bool) -> None:
        """Write the sum over the ranks of this rank's piece, or add it; call after `wait`.

        Args:
            total: shape (piece,).
        """
        first, *others = self.received.view(-1, len(total))
        if add:
            total.add_(first)
        else:
            total.copy_(first)
        for piece in others:
            total.add_(piece)


def all_gather(whole: torch.Tensor, piece: torch.Tensor, group: dist.ProcessGroup | None) -> None:
    """Write the pieces of all ranks into `whole`, which has shape (ranks * piece,)."""
    _all_gather(whole, piece, group=group)


def start_all_gather(whole: torch.Tensor, piece: torch.Tensor) -> dist.Work:
    """The same, to be waited for; neither tensor may be used before."""
    return _all_gather(whole, piece, async_op=True)


def all_reduce_bf16(tensor: torch.Tensor, group: dist.ProcessGroup | None = None) -> None:
    """Sum a contiguous tensor over the ranks, in place; the sums are those of bf16 too."""
    flat, ranks = tensor.view(-1), dist.get_world_size(group)
    piece = -(-len(flat) // ranks)
    wire = torch.zeros(piece * ranks, dtype=torch.bfloat16)
    wire[: len(flat)] = flat
    total = torch.empty(piece, dtype=torch.float32)
    reduced = ReduceScatter(wire, torch.empty_like(wire), group)
    reduced.wait()
    reduced.sum(total, add=False)
    all_gather(wire, total.to(torch.bfloat16), group)
    flat.copy_(wire[: len(flat)])


class Bf16AllReduces:
    """All-reduces beside the backward pass; each rank makes it at the same time.

    An all-reduce is two collectives, so that those of several tensors would mix in another order on
    each rank: they run one after the other, in a thread and a group of their own.
    """

    def __init__(self) -> None:
        self._group = dist.new_group()
        self._thread = ThreadPoolExecutor(1, "bf16-all-reduce")

    def start(self, tensor: torch.Tensor) -> "Future[None]":
        """Begin; in the same order on all ranks."""
        return self._thread.submit(all_reduce_bf16, tensor, self._group)


def all_reduce_quantized(
    own: torch.Tensor,
    total: torch.Tensor,
    dtype: Literal["bf16", "int8"],
    group: dist.ProcessGroup | None,
) -> None:
    """Sum a tensor over the ranks of a group. Every rank gets the same sums, to the last bit.

    Args:
        own: fp32, shape (elements,); becomes what the others receive of it.
        total: fp32, shape (elements,), to be written.
    """
    for part, sums in zip(own.split(CHUNK), total.split(CHUNK), strict=True):
        _all_reduce(part, sums, dtype, group)


def _all_reduce(
    own: torch.Tensor, total: torch.Tensor, dtype: str, group: dist.ProcessGroup | None
) -> None:
    ranks = dist.get_world_size(group)
    rows = -(-len(own) // (BLOCK * ranks)) * ranks
    padded = torch.zeros(rows * BLOCK, dtype=torch.float32)
    padded[: len(own)] = own
    wire = pack(padded.view(rows, BLOCK), dtype)
    own.copy_(unpack(wire, dtype).view(-1)[: len(own)])
    received = torch.empty_like(wire)
    dist.all_to_all_single(received, wire, group=group)
    first, *others = received.chunk(ranks)
    piece = unpack(first, dtype)
    for other in others:
        piece += unpack(other, dtype)
    all_gather(wire, pack(piece, dtype), group)
    total.copy_(unpack(wire, dtype).view(-1)[: len(total)])


def wire_bytes(elements: int, dtype: str) -> int:
    """What is sent of so many elements, but for padding.

    >>> wire_bytes(1000, "bf16"), wire_bytes(1024, "int8")
    (2000, 1040)
    """
    return 2 * elements if dtype == "bf16" else elements + -(-elements // BLOCK) * 4


def pack(values: torch.Tensor, dtype: str) -> torch.Tensor:
    """Rows as bytes: in bf16, or in int8 with the row's scale in fp32 behind it.

    Args:
        values: fp32, shape (rows, BLOCK).

    Returns:
        uint8, shape (rows, bytes of a row).
    """
    if dtype == "bf16":
        return values.to(torch.bfloat16).view(torch.uint8)
    scale = values.abs().amax(1, keepdim=True) / 127
    numbers = (values / scale.clamp(min=torch.finfo(torch.float32).tiny)).round_().to(torch.int8)
    return torch.cat([numbers.view(torch.uint8), scale.view(torch.uint8)], 1)


def unpack(wire: torch.Tensor, dtype: str) -> torch.Tensor:
    """What `pack` has been given, rounded: fp32, shape (rows, BLOCK)."""
    if dtype == "bf16":
        return wire.view(torch.bfloat16).float()
    scale = wire[:, BLOCK:].contiguous().view(torch.float32)
    return wire[:, :BLOCK].view(torch.int8) * scale


def count_rows(own: int, traffic: Traffic) -> list[int]:
    """The number of rows of each rank; every rank calls it."""
    counts = torch.empty(dist.get_world_size(), dtype=torch.int64)
    traffic.add(counts.nbytes, len(counts))
    with traffic:
        all_gather(counts, torch.tensor([own], dtype=torch.int64), None)
    return [int(count) for count in counts]


def gather_rows(own: torch.Tensor, counts: Sequence[int], traffic: Traffic) -> torch.Tensor:
    """The rows of all ranks, by rank; every rank calls it.

    If they have gradients, every rank has to call `backward` on what it computes of them, because
    these are summed over the ranks then.

    Args:
        own: shape (rows of this rank, width).
        counts: rows of each rank.
    """
    gathered: torch.Tensor = _GatherRows.apply(own, counts, traffic)
    return gathered


class _GatherRows(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(
        ctx: Any, own: torch.Tensor, counts: Sequence[int], traffic: Traffic
    ) -> torch.Tensor:
        ctx.counts, ctx.traffic = counts, traffic
        ranks, most, width = len(counts), max(counts), own.shape[1]
        padded = own.new_zeros(most, width)
        padded[: len(own)] = own
        whole = own.new_empty(ranks, most, width)
        traffic.add(whole.nbytes, ranks)
        with traffic:
            all_gather(whole.view(-1), padded.view(-1), None)
        return torch.cat([of_rank[:count] for of_rank, count in zip(whole, counts, strict=True)])

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        counts, traffic = ctx.counts, ctx.traffic
        ranks, most, width = len(counts), max(counts), grad_output.shape[1]
        sent = grad_output.new_zeros(ranks, most, width)
        for place, gradients in zip(sent, grad_output.split(counts), strict=True):
            place[: len(gradients)] = gradients
        total = grad_output.new_empty(most * width)
        traffic.add(sent.nbytes, ranks)
        with traffic:
            reduced = ReduceScatter(sent.view(-1), torch.empty_like(sent).view(-1))
            reduced.wait()
        reduced.sum(total, add=False)
        rows = total.view(most, width)[: counts[dist.get_rank()]]
        return rows, None, None


def bf16_hook(_: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """The mean of a bucket's gradients over all ranks: bf16 on the wire, summed in fp32."""
    gradients = bucket.buffer()
    found: torch.futures.Future[torch.Tensor] = torch.futures.Future()

    def finish(done: "Future[None]") -> None:
        error = done.exception()
        if isinstance(error, Exception):
            found.set_exception(error)
        else:
            found.set_result(gradients)

    _all_reduces().start(gradients.div_(dist.get_world_size())).add_done_callback(finish)
    return found


@cache
def _all_reduces() -> Bf16AllReduces:
    """Those of this process; it makes a group of all ranks in its first backward pass."""
    return Bf16AllReduces()
