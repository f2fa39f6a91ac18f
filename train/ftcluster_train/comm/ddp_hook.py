"""A communication hook for torch's DistributedDataParallel in a user's script.

    from ftcluster_train.comm.collectives import bf16_hook
    model.register_comm_hook(None, bf16_hook)

Half of the bytes of DDP's own all-reduce. torch's `bf16_compress_hook` is refused on CPUs, and sums
in bf16.
"""

from concurrent.futures import Future
from functools import cache

import torch
import torch.distributed as dist

from ftcluster_train.comm.all_reduce import Bf16AllReduces


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
