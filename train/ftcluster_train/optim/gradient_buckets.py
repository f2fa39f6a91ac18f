"""The gradients of a model in one row of memory, summed over all ranks while they are computed."""

import torch
import torch.distributed as dist

from ftcluster_train.optim.flat_params import FlatWeights

BUCKET = 25 << 18  # elements, 25 MB: shared as soon as all of them are there, as in torch's DDP


class SharedGradients:
    """Sums gradients over the parts of a batch and over the ranks, in fp32.

    The backward pass hands each parameter's gradient over when it is complete; it is added in while
    it is still in the cache, and its memory is free again. With the last part of a batch each
    bucket is sent on its way when it is full, in the same order on every rank.

    Args:
        weights: of the model.
        size: number of ranks.

    Attributes:
        flat: of shape (elements,), in fp32, as the weights' masters.
    """

    def __init__(self, weights: FlatWeights, size: int) -> None:
        self.flat = torch.zeros_like(weights.masters)
        self._size, self._places = size, weights.places
        self._buckets = _buckets(weights.decayed, len(self.flat))
        self._parts = {
            parameter: [
                number
                for number, bucket in enumerate(self._buckets)
                if bucket.start < place.stop and place.start < bucket.stop
            ]
            for parameter, place in self._places.items()
        }
        self._due = [0] * len(self._buckets)  # parameters of each bucket
        for numbers in self._parts.values():
            for number in numbers:
                self._due[number] += 1
        self._sums: set[torch.nn.Parameter] = set()
        self._works: list[dist.Work | None] = []
        self._left: list[int] = []
        for parameter in self._places:
            parameter.register_post_accumulate_grad_hook(self._arrived)

    def expect(self, last: bool) -> None:
        """Say before each backward pass of a step whether it is the `last` one."""
        self._left = list(self._due) if last else []

    def finish(self) -> torch.Tensor:
        """The sum over all ranks, after the last backward pass of a step; it is `flat`."""
        for parameter in self._places.keys() - self._sums:
            self.flat[self._places[parameter]] = 0  # no loss depends on it
        self._sums.clear()
        self._left = [0] * len(self._buckets)
        self._send()
        for work in self._works:
            if work is not None:
                work.wait()
        self._works.clear()
        return self.flat

    def _arrived(self, parameter: torch.nn.Parameter) -> None:
        gradient, place = parameter.grad, self._places[parameter]
        assert gradient is not None
        if parameter in self._sums:
            self.flat[place].add_(gradient.flatten())
        else:
            self.flat[place].copy_(gradient.flatten())
            self._sums.add(parameter)
        parameter.grad = None
        if self._left:
            for bucket in self._parts[parameter]:
                self._left[bucket] -= 1
            self._send()

    def _send(self) -> None:
        while self._size > 1 and len(self._works) < len(self._buckets):
            number = len(self._works)
            if self._left[number]:
                break
            self._works.append(dist.all_reduce(self.flat[self._buckets[number]], async_op=True))


def _buckets(decayed: int, end: int) -> list[slice]:
    """In the order that they fill: the backward pass begins with the last layers.

    Those of biases and norms, which each layer has some of, come last.
    """
    first = [slice(b, min(b + BUCKET, decayed)) for b in range(0, decayed, BUCKET)]
    return first[::-1] + [slice(b, min(b + BUCKET, end)) for b in range(decayed, end, BUCKET)]
