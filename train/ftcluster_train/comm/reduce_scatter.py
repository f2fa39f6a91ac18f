"""The two halves of an all-reduce: a reduce-scatter that sums in fp32, and an all-gather.

Each rank sends every other rank the piece of the tensor that the other rank sums. Each rank sums
the pieces that it receives in fp32, in the order of the ranks. Values are rounded before they are
sent; sums are not rounded again. gloo's own reduce-scatter is an all-reduce (torch 2.13) and takes
three times as long.
"""

import torch
import torch.distributed as dist

# torch 2.13 renamed the function, and warns if the old name is used
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


class ReduceScatter:
    """A reduce-scatter in flight.

    Args:
        sent: shape (ranks * piece,), in the dtype to send; must not change until `wait` returns.
        received: receive buffer of the same shape and dtype.
    """

    def __init__(
        self, sent: torch.Tensor, received: torch.Tensor, group: dist.ProcessGroup | None = None
    ) -> None:
        self.sent, self.received = sent, received
        self._work = dist.all_to_all_single(received, sent, group=group, async_op=True)

    def wait(self) -> None:
        """Wait until this rank has received the pieces from all ranks."""
        self._work.wait()

    def sum(self, total: torch.Tensor, add: bool) -> None:
        """Write this rank's piece, summed over the ranks, to `total`; call `wait` first.

        Args:
            total: shape (piece,).
            add: True to add the sum to `total` instead of overwriting it.
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
    """Start an `all_gather` over all ranks; do not use the tensors before it is complete."""
    return _all_gather(whole, piece, async_op=True)
