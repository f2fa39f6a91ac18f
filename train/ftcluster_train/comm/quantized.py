"""Sums over ranks with bf16 or int8 on the wire, and fp32 in the sum."""

from typing import Literal

import torch
import torch.distributed as dist

from ftcluster_train.comm.pieces import all_gather

BLOCK = 256  # values of int8 with a common scale, which adds 1.6 % of bytes
CHUNK = 1 << 22  # elements that are sent at once


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
    padded = torch.zeros(rows * BLOCK)
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
