"""The two halves of an all-reduce: a reduce-scatter that sums in fp32, and an all-gather.

Each rank sends every other rank its piece of a tensor, and each sums what it has received, in fp32
and in the order of the ranks. A value is rounded before it is sent, and a sum is not rounded again.
With gloo this is also the fastest reduce-scatter: its own is an all-reduce (torch 2.13), three
times as slow.
"""

import torch
import torch.distributed as dist

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
        """Wait until this rank has the others' pieces."""
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
    """Start an `all_gather` over all ranks; neither tensor may be used before it is waited for."""
    return _all_gather(whole, piece, async_op=True)
