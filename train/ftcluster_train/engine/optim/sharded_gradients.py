"""A model's gradients, of which each rank keeps the sums of its pieces only."""

from collections import defaultdict, deque

import torch
import torch.distributed as dist

from ftcluster_train.comm.pieces import ReduceScatter
from ftcluster_train.engine.optim.flat_params import ALIGNMENT
from ftcluster_train.engine.optim.sharded_weights import ShardedWeights, moved, overlap

IN_FLIGHT = 2  # reduce-scatters at once; their buffers are memory


class ShardedGradients:
    """Sums gradients over micro-batches and ranks, in fp32 (ZeRO's stage 2).

    A hook copies each parameter's gradient into the buffer of its bucket as soon as the backward
    pass has it, and frees it. A bucket that is complete is reduce-scattered, and its buffer is used
    for another one. So each rank sends its gradients after each micro-batch, and has no memory for
    all of them. The order is the same on every rank: after the first step that in which rank 0 had
    the buckets, because one with a parameter that no loss depends on is complete last. A
    parameter's `row_gradients`, pairs of row numbers and fp32 gradients, are added with its
    gradient.

    Args:
        dtype: fp32 or bf16, in which gradients are sent; auto: in bf16 where torch computes them in
            bf16, so that nothing is rounded.
        rounds: backward passes of a step; a rank with fewer sends zeros for the others.

    Attributes:
        sums: this rank's piece of each bucket, fp32.
    """

    def __init__(self, weights: ShardedWeights, dtype: str, rounds: int) -> None:
        self._weights, self._rounds, self._traffic = weights, rounds, weights.traffic
        self.sums = [torch.zeros_like(master) for master in weights.masters]
        self._dtypes = [
            torch.bfloat16
            if dtype == "bf16" or (dtype == "auto" and bucket.bf16_gradients)
            else torch.float32
            for bucket in weights.buckets
        ]
        self._round = 0
        self._seen: set[torch.nn.Parameter] = set()  # in this backward pass
        self._missing: list[int] = []  # parameters that each bucket waits for
        self._order = list(range(len(weights.buckets)))  # in which they are sent
        self._completed: list[int] | None = []  # in the first backward pass; None afterwards
        self._sent = 0  # buckets of this backward pass
        self._filling: dict[int, torch.Tensor] = {}  # buffers by the number of the bucket
        self._flight: deque[tuple[int, bool, ReduceScatter]] = deque()  # bucket; whether to add
        self._free: defaultdict[tuple[torch.dtype, int], list[torch.Tensor]] = defaultdict(list)
        for parameter in weights.layout.slices:
            parameter.row_gradients = []
            parameter.register_post_accumulate_grad_hook(self._add_gradient)

    def start_backward(self) -> None:
        """Call before each backward pass."""
        self._round += 1
        self._seen.clear()
        self._missing = [len(bucket.parameters) for bucket in self._weights.buckets]
        self._sent = 0

    def finish_backward(self) -> None:
        """Call after each backward pass: send what no loss depended on, or only on some rows."""
        for number in self._order:
            for parameter in self._weights.buckets[number].parameters:
                if parameter not in self._seen:
                    self._add_gradient(parameter)

    def wait(self) -> list[torch.Tensor]:
        """The sums of a step, which are `sums`; call after its last backward pass."""
        while self._round < self._rounds:
            self.start_backward()
            self.finish_backward()
        self._round = 0
        while self._flight:
            self._finish_oldest()
        if self._completed is not None:
            order = torch.tensor(self._completed[: len(self._order)])
            dist.broadcast(order, 0)
            self._order, self._completed = order.tolist(), None
            self._free.clear()
        return self.sums

    def _add_gradient(self, parameter: torch.nn.Parameter) -> None:
        self._seen.add(parameter)
        gradient = None if parameter.grad is None else parameter.grad.flatten()
        parameter.grad = None
        for number in self._weights.buckets_of[parameter]:
            self._fill(parameter, gradient, number)
            self._missing[number] -= 1
            if not self._missing[number] and self._completed is not None:
                self._completed.append(number)
            while self._sent < len(self._order) and not self._missing[self._order[self._sent]]:
                self._send(self._order[self._sent])
                self._sent += 1
        parameter.row_gradients.clear()

    def _fill(
        self, parameter: torch.nn.Parameter, gradient: torch.Tensor | None, number: int
    ) -> None:
        """Write a parameter's part of a bucket, with the padding behind it."""
        bucket = self._weights.buckets[number]
        if number not in self._filling:
            self._filling[number] = self._buffer(number)
            self._filling[number][bucket.length :].zero_()
        buffer = self._filling[number]
        place = self._weights.layout.slices[parameter]
        common = overlap(place, bucket.place)
        inside, within = moved(common, bucket.place), moved(common, place)
        buffer[inside.stop : -(-inside.stop // ALIGNMENT) * ALIGNMENT].zero_()
        target = buffer[inside]
        if gradient is None:
            target.zero_()
        else:
            target.copy_(gradient[within])
        for rows, values in parameter.row_gradients:
            target.add_(elements_of_rows(rows, values, within))

    def _send(self, number: int) -> None:
        if len(self._flight) == IN_FLIGHT:
            self._finish_oldest()
        received = self._buffer(number)
        self._traffic.add(received.nbytes, dist.get_world_size())
        reduced = ReduceScatter(self._filling.pop(number), received)
        self._flight.append((number, self._round > 1, reduced))

    def _finish_oldest(self) -> None:
        number, add, reduced = self._flight.popleft()
        with self._traffic:
            reduced.wait()
        reduced.sum(self.sums[number], add)
        for buffer in (reduced.sent, reduced.received):
            self._free[buffer.dtype, len(buffer)].append(buffer)

    def _buffer(self, number: int) -> torch.Tensor:
        """Memory for a bucket, with any values."""
        kind = self._dtypes[number], len(self.sums[number]) * dist.get_world_size()
        free = self._free[kind]
        return free.pop() if free else torch.empty(kind[1], dtype=kind[0])


def elements_of_rows(rows: torch.Tensor, values: torch.Tensor, within: slice) -> torch.Tensor:
    """Some elements of a matrix that is zero but for sums of rows.

    Args:
        rows: shape (n,), numbers of rows.
        values: shape (n, width), what is added to these rows.
        within: elements of the flat matrix.

    Returns:
        Shape (elements,).
    """
    width = values.shape[1]
    first, end = within.start // width, -(-within.stop // width)
    inside = (rows >= first) & (rows < end)
    dense = torch.zeros(end - first, width)
    dense.index_add_(0, rows[inside] - first, values[inside])
    return dense.view(-1)[within.start - first * width : within.stop - first * width]
