"""A module that sum.py imports."""

import torch
import torch.distributed as dist


def total(value: torch.Tensor) -> int:
    dist.all_reduce(value)
    return int(value.item())
