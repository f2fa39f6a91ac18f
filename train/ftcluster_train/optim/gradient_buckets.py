"""A model's gradients in one flat tensor, all-reduced in buckets during the backward pass."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from ftcluster_train.distributed.pieces import Bf16AllReduces
from ftcluster_train.optim.flat_params import FlatWeights

EXTRA = 2  # numbers that are summed with the gradients
BUCKET = 25 << 18  # elements; 25 MB in fp32, as in torch's DDP


class GradientBuckets:
    """Sums gradients over micro-batches and ranks, in fp32.

    A hook adds each parameter's gradient to `flat` as soon as the backward pass has it, while it is
    still in the cache, and frees it. In the last backward pass of a step each bucket is reduced
    when it is complete, in the same order on every rank. A parameter's `row_gradients`, pairs of
    row numbers and fp32 gradients, are added with its gradient, or at the end if it has no other.

    Attributes:
        flat: shape (elements,), fp32, laid out as the master weights.
        extra: shape (EXTRA,), numbers that are summed with the gradients; set them before the
            backward pass.

    Args:
        world_size: ranks of the group.
        bf16: whether gradients are sent in bf16; in the group of all ranks only.
        group: default: all ranks.
    """

    def __init__(
        self, weights: FlatWeights, world_size: int, bf16: bool = False,
        group: dist.ProcessGroup | None = None,
    ) -> None:  # fmt: skip
        elements = weights.layout.elements
        self._all = torch.zeros(elements + EXTRA)
        self.flat, self.extra = self._all[:elements], self._all[elements:]
        self._world_size, self._group = world_size, group
        self._slices = weights.layout.slices
        self._bf16 = Bf16AllReduces() if bf16 and world_size > 1 else None
        self.buckets = bucket_slices(weights.layout.decayed, len(self._all))
        self._buckets_of = {
            parameter: [
                number
                for number, bucket in enumerate(self.buckets)
                if bucket.start < place.stop and place.start < bucket.stop
            ]
            for parameter, place in self._slices.items()
        }
        self._parameters_in = [0] * len(self.buckets)
        for numbers in self._buckets_of.values():
            for number in numbers:
                self._parameters_in[number] += 1
        self._seen: set[torch.nn.Parameter] = set()  # have a gradient in this step
        self._waits: list[Callable[[], Any]] = []  # for the buckets that were sent
        self._missing: list[int] = []  # parameters that each bucket waits for; empty: do not send
        for parameter in self._slices:
            parameter.row_gradients = []
            parameter.register_post_accumulate_grad_hook(self._add_gradient)

    def start_backward(self, last: bool) -> None:
        """Call before each backward pass; `last` is the last one of an optimizer step."""
        self._missing = list(self._parameters_in) if last else []

    def wait(self) -> torch.Tensor:
        """The sum over all ranks, which is `flat`; call after the last backward pass of a step."""
        for parameter in self._slices.keys() - self._seen:
            self.flat[self._slices[parameter]] = 0  # no loss depends on it, or only on some rows
            self._add_rows(parameter)
        self._seen.clear()
        self._missing = [0] * len(self.buckets)
        self._send_complete_buckets()
        for wait in self._waits:
            wait()
        self._waits.clear()
        return self.flat

    def _add_gradient(self, parameter: torch.nn.Parameter) -> None:
        flat = self.flat[self._slices[parameter]].view(parameter.shape)
        if parameter not in self._seen:
            flat.zero_() if parameter.grad is None else flat.copy_(parameter.grad)
        elif parameter.grad is not None:
            flat.add_(parameter.grad)
        self._seen.add(parameter)
        parameter.grad = None
        self._add_rows(parameter)
        if self._missing:
            for bucket in self._buckets_of[parameter]:
                self._missing[bucket] -= 1
            self._send_complete_buckets()

    def _add_rows(self, parameter: torch.nn.Parameter) -> None:
        flat = self.flat[self._slices[parameter]].view(parameter.shape)
        for rows, gradients in parameter.row_gradients:
            flat.index_add_(0, rows, gradients)
        parameter.row_gradients.clear()

    def _send_complete_buckets(self) -> None:
        while self._world_size > 1 and len(self._waits) < len(self.buckets):
            number = len(self._waits)
            if self._missing[number]:
                break
            self._waits.append(self._start_all_reduce(self._all[self.buckets[number]]))

    def _start_all_reduce(self, bucket: torch.Tensor) -> Callable[[], Any]:
        """Returns what waits for it."""
        if self._bf16:
            return self._bf16.start(bucket).result
        return dist.all_reduce(bucket, group=self._group, async_op=True).wait  # type: ignore[no-any-return]


def bucket_slices(decayed: int, end: int, multiple: int = 1) -> list[slice]:
    """In the order in which they fill: the backward pass starts with the last layers.

    Biases and norms come last, because every layer has some.

    Args:
        multiple: of which each has its length, where `decayed` and `end` are multiples of it.
    """
    size = max(BUCKET // multiple, 1) * multiple
    matrices = [slice(b, min(b + size, decayed)) for b in range(0, decayed, size)]
    return matrices[::-1] + [slice(b, min(b + size, end)) for b in range(decayed, end, size)]
