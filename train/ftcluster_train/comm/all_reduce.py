"""All-reduces that send bf16 or int8 and sum in fp32."""

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Literal

import torch
import torch.distributed as dist

from ftcluster_train.comm.reduce_scatter import ReduceScatter, all_gather

BLOCK = 256  # number of int8 values that share a scale; the scales add 1.6 % to the bytes sent
CHUNK = 1 << 22  # maximum number of elements that are sent at once


class _Memory:
    """Memory for all-reduces that run one after the other.

    New memory for each of them would cost page faults, and handles that torch keeps for a while
    would keep the memory of many steps.
    """

    def __init__(self) -> None:
        self._wires = torch.empty(2, 0, dtype=torch.bfloat16)
        self._total = torch.empty(0, dtype=torch.float32)

    def of(self, elements: int, ranks: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return two wires of `elements` in bf16, and this rank's piece of a wire in fp32."""
        if self._wires.shape[1] < elements:
            self._wires = torch.empty(2, elements, dtype=torch.bfloat16)
        if len(self._total) < elements // ranks:
            self._total = torch.empty(elements // ranks, dtype=torch.float32)
        sent, received = self._wires[:, :elements]
        return sent, received, self._total[: elements // ranks]


def all_reduce_bf16(
    tensor: torch.Tensor, group: dist.ProcessGroup | None = None, memory: _Memory | None = None
) -> None:
    """Sum a contiguous tensor over the ranks, in place; the sums are rounded to bf16 too.

    Args:
        memory: memory of earlier all-reduces; None allocates new memory.
    """
    flat, ranks = tensor.view(-1), dist.get_world_size(group)
    count = len(flat)
    wire, received, total = (memory or _Memory()).of(-(-count // ranks) * ranks, ranks)
    wire[:count] = flat
    wire[count:] = 0
    reduced = ReduceScatter(wire, received, group)
    reduced.wait()
    reduced.sum(total, add=False)
    piece = received[: len(total)].copy_(total)
    all_gather(wire, piece, group)
    flat.copy_(wire[:count])


class Bf16AllReduces:
    """All-reduces that run during the backward pass; all ranks create this at the same time.

    An all-reduce consists of two collectives. If several all-reduces ran at once, their collectives
    could be interleaved in a different order on each rank. The all-reduces therefore run one after
    the other, in a thread and a process group that nothing else uses.
    """

    def __init__(self) -> None:
        self._group = dist.new_group()
        self._thread = ThreadPoolExecutor(1, "bf16-all-reduce")
        self._memory = _Memory()

    def start(
        self, tensor: torch.Tensor, on_end: Callable[[float], None] | None = None
    ) -> "Future[None]":
        """Start an all-reduce; all ranks must call this in the same order.

        Args:
            on_end: function that is called in the thread after the all-reduce, with the time of
                `time.perf_counter` at which the thread began it.
        """
        return self._thread.submit(self._all_reduce, tensor, on_end)

    def _all_reduce(self, tensor: torch.Tensor, on_end: Callable[[float], None] | None) -> None:
        began = time.perf_counter()
        all_reduce_bf16(tensor, self._group, self._memory)
        if on_end:
            on_end(began)


def all_reduce_quantized(
    values: torch.Tensor,
    total: torch.Tensor,
    dtype: Literal["bf16", "int8"],
    group: dist.ProcessGroup | None,
) -> None:
    """Sum a tensor over the ranks of a group; the sums are bitwise equal on every rank.

    Args:
        values: fp32, shape (elements,); overwritten with the rounded values that are sent.
        total: fp32, shape (elements,); overwritten with the sums.
    """
    for part, sums in zip(values.split(CHUNK), total.split(CHUNK), strict=True):
        _all_reduce(part, sums, dtype, group)


def _all_reduce(
    values: torch.Tensor, total: torch.Tensor, dtype: str, group: dist.ProcessGroup | None
) -> None:
    ranks = dist.get_world_size(group)
    rows = -(-len(values) // (BLOCK * ranks)) * ranks
    padded = torch.zeros(rows * BLOCK, dtype=torch.float32)
    padded[: len(values)] = values
    wire = pack(padded.view(rows, BLOCK), dtype)
    values.copy_(unpack(wire, dtype).view(-1)[: len(values)])
    received = torch.empty_like(wire)
    dist.all_to_all_single(received, wire, group=group)
    first, *others = received.chunk(ranks)
    piece = unpack(first, dtype)
    for other in others:
        piece += unpack(other, dtype)
    all_gather(wire, pack(piece, dtype), group)
    total.copy_(unpack(wire, dtype).view(-1)[: len(total)])


def wire_bytes(elements: int, dtype: str) -> int:
    """Return the bytes sent for `elements` values, excluding padding.

    >>> wire_bytes(1000, "bf16"), wire_bytes(1024, "int8")
    (2000, 1040)
    """
    return 2 * elements if dtype == "bf16" else elements + -(-elements // BLOCK) * 4


def pack(values: torch.Tensor, dtype: str) -> torch.Tensor:
    """Return rows as bytes: in bf16, or in int8 followed by the row's scale in fp32.

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
    """Return the rounded rows that `pack` encoded: fp32, shape (rows, BLOCK)."""
    if dtype == "bf16":
        return wire.view(torch.bfloat16).float()
    scale = wire[:, BLOCK:].contiguous().view(torch.float32)
    return wire[:, :BLOCK].view(torch.int8) * scale
