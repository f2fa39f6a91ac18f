"""Gathers the rows of all ranks; the backward pass sums the rows' gradients over the ranks."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from ftcluster_train.comm.reduce_scatter import ReduceScatter, all_gather
from ftcluster_train.comm.traffic import Traffic


def count_rows(count: int, traffic: Traffic) -> list[int]:
    """Return the number of rows on each rank; every rank must call this."""
    counts = torch.empty(dist.get_world_size(), dtype=torch.int64)
    traffic.add(counts.nbytes, len(counts))
    with traffic:
        all_gather(counts, torch.tensor([count], dtype=torch.int64), None)
    return [int(rank_count) for rank_count in counts]


def gather_rows(rows: torch.Tensor, counts: Sequence[int], traffic: Traffic) -> torch.Tensor:
    """Return the rows of all ranks, ordered by rank; every rank must call this.

    If the rows have gradients, every rank must call `backward` on its results, because the backward
    pass sums the gradients over the ranks.

    Args:
        rows: rows of this rank, shape (rows, width).
        counts: number of rows on each rank.
    """
    gathered: torch.Tensor = _GatherRows.apply(rows, counts, traffic)
    return gathered


def sum_over_ranks(values: torch.Tensor, traffic: Traffic) -> torch.Tensor:
    """Return the sum of a vector over all ranks, without gradients; every rank must call this."""
    counts = [1] * dist.get_world_size()
    return gather_rows(values.detach()[None], counts, traffic).sum(0)


class _GatherRows(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(
        ctx: Any, rows: torch.Tensor, counts: Sequence[int], traffic: Traffic
    ) -> torch.Tensor:
        ctx.counts, ctx.traffic = counts, traffic
        ranks, most, width = len(counts), max(counts), rows.shape[1]
        padded = rows.new_zeros(most, width)
        padded[: len(rows)] = rows
        whole = rows.new_empty(ranks, most, width)
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
