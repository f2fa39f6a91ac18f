"""The workers of local training: groups of ranks that step together, and exchange rarely."""

import os
from dataclasses import dataclass

import torch.distributed as dist

from ftcluster_train.comm.world import gather_over_ranks


@dataclass(frozen=True)
class Worker:
    """The ranks of a host; where there is one host only, a single rank.

    Attributes:
        ranks: of this worker.
        world_size: ranks of all workers.
        steps: its group for gradients; None for a single rank.
        exchange: another group of the same ranks, for another thread; None for a single rank.
        leaders: the group of the first ranks of all workers; None on another rank.
    """

    ranks: tuple[int, ...]
    world_size: int
    steps: dist.ProcessGroup | None
    exchange: dist.ProcessGroup | None
    leaders: dist.ProcessGroup | None

    @property
    def share(self) -> float:
        """Its part of all ranks, and so of each batch."""
        return len(self.ranks) / self.world_size


def make_worker() -> Worker:
    """This rank's worker; every rank calls it."""
    hosts = gather_over_ranks(os.environ.get("GROUP_RANK", "0"))  # set by `bind`
    if len(set(hosts)) == 1:
        hosts = [str(rank) for rank in range(len(hosts))]
    here = hosts[dist.get_rank()]
    members = {
        host: tuple(rank for rank, of_rank in enumerate(hosts) if of_rank == host)
        for host in dict.fromkeys(hosts)
    }
    groups: dict[str, list[dist.ProcessGroup | None]] = {
        host: [dist.new_group(ranks) if len(ranks) > 1 else None for _ in range(2)]
        for host, ranks in members.items()
    }
    first = [ranks[0] for ranks in members.values()]
    leaders = dist.new_group(first)
    steps, exchange = groups[here]
    leads = dist.get_rank() in first
    return Worker(members[here], len(hosts), steps, exchange, leaders if leads else None)
