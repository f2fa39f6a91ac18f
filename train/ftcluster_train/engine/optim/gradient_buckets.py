"""All gradients of a model in one flat tensor, all-reduced in buckets during the backward pass."""

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from ftcluster_kernels import simd
from ftcluster_kernels.gradient_sums import GradientSums, make_sums
from ftcluster_train.comm.all_reduce import Bf16AllReduces
from ftcluster_train.comm.reduce_scatter import all_gather
from ftcluster_train.comm.traffic import Traffic
from ftcluster_train.engine.optim.flat_params import FlatWeights, add_gradient_hook
from ftcluster_train.patching.batch_context import GradientSinks, RowGradients

CONTROL_FLAGS = 2  # number of control flags that are summed over the ranks with the gradients
FP32_PER_MIB = 1 << 18
BUCKET = 25 * FP32_PER_MIB  # default number of elements per bucket, as in torch's DDP
TABLE = 1 << 20  # an embedding needs this many elements to have its rows exchanged separately


class GradientBuckets:
    """Sums gradients over micro-batches and ranks, in fp32.

    As soon as the backward pass has computed a parameter's gradient, a hook adds the gradient to
    `flat` and frees the original. On CPUs with a suitable kernel, linear layers add their gradients
    directly to `flat` (`sinks.sums`). In the last backward pass of a step, each bucket is
    all-reduced as soon as it is complete, in the same order on every rank.

    In an embedding, only the rows of tokens in the batch have gradients (`sinks.rows`). This class
    calls a large embedding a table if no other layer uses its weights. The ranks exchange only the
    rows of a table that have gradients, unless an all-reduce of the whole table transfers fewer
    bytes. All ranks add the rows in the same order.

    Attributes:
        flat: gradients in fp32, shape (elements,), in the layout of the master weights.
        control_flags: values that are summed over the ranks with the gradients, shape
            (CONTROL_FLAGS,); set them before the backward pass.
        traffic: counters of the bytes sent for gradients.
        sinks: destinations of gradients that kernels compute, for `BatchContext`.

    Args:
        world_size: number of ranks in the group.
        bf16: True to send gradients in bf16, which works only if the group contains all ranks.
        group: ranks to sum over; None means all ranks.
        bucket_mb: maximum size of a bucket in fp32, in MiB; None means 25.
    """

    def __init__(
        self, weights: FlatWeights, world_size: int, bf16: bool = False,
        group: dist.ProcessGroup | None = None, bucket_mb: int | None = None,
    ) -> None:  # fmt: skip
        elements = weights.layout.elements
        self._all = torch.zeros(elements + CONTROL_FLAGS, dtype=torch.float32)
        self.flat, self.control_flags = self._all[:elements], self._all[elements:]
        self.traffic = Traffic()
        self._world_size, self._group = world_size, group
        self._bucket_mb = bucket_mb
        self._slices = weights.layout.slices
        self._bf16 = Bf16AllReduces() if bf16 and world_size > 1 else None
        self._tables = {  # the order of the tables is the same on every rank
            p: place
            for p, place in self._slices.items()
            if world_size > 1 and p in weights.untied_embeddings and p.numel() >= TABLE
        }
        apart = list(self._tables.values())
        self.buckets = [
            part
            for bucket in bucket_slices(weights.layout.decayed, len(self._all), bucket_mb)
            for part in without(bucket, apart)
        ]
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
        self._seen: set[torch.nn.Parameter] = set()  # parameters with a gradient in this step
        # indices of the table rows that may differ from 0
        self._filled: dict[torch.nn.Parameter, list[torch.Tensor]] = {}
        self._sums: dict[torch.nn.Parameter, GradientSums | None] = {}
        self._waits: list[Callable[[], Any]] = []  # functions that wait for the sent buckets
        self._missing: list[int] = []  # missing gradients of each bucket; [] if nothing is sent
        rows: dict[torch.Tensor, RowGradients] = {parameter: [] for parameter in self._slices}
        self.sinks = GradientSinks(rows=rows)
        for parameter in self._slices:
            sums = make_sums(self._flat(parameter), weights.model_weights.dtype)
            self._sums[parameter] = sums
            add_gradient_hook(parameter, self._add_gradient)
        self.offer_sums(True)

    def offer_sums(self, offered: bool) -> None:
        """Allow or forbid kernels to add gradients to `flat`.

        Forbid it while the parameters are not views of the flat weights.

        Args:
            offered: True if kernels may add gradients; False if autograd computes all gradients.
        """
        self.sinks.sums.clear()
        if offered:
            self.sinks.sums.update({p: sums for p, sums in self._sums.items() if sums})

    def start_backward(self, last: bool) -> None:
        """Prepare for a backward pass.

        Args:
            last: True for the last backward pass of a step, which all-reduces the buckets.
        """
        self._missing = list(self._parameters_in) if last else []

    def wait(self) -> torch.Tensor:
        """Wait for all all-reduces, and return `flat` with the gradients summed over the ranks.

        Call this method after the last backward pass of a step.
        """
        for parameter in self._slices.keys() - self._seen:
            self._clear(parameter)  # no gradient in this step, or only row gradients
            if parameter not in self._tables:
                self._add_rows(parameter)
        self._missing = [0] * len(self.buckets)
        self._send_complete_buckets()
        if self._tables:
            self._sum_tables()
        self._seen.clear()
        for sums in filter(None, self._sums.values()):
            sums.restart()
        with self.traffic:
            for wait in self._waits:
                wait()
        self._waits.clear()
        return self.flat

    def _add_gradient(self, parameter: torch.nn.Parameter) -> None:
        if parameter in self._tables and parameter.grad is None:
            return  # its row gradients are added after the last backward pass
        flat, grad, sums = self._flat(parameter), parameter.grad, self._sums[parameter]
        added = sums is not None and sums.filled
        if grad is None:
            if added:
                self._filled.pop(parameter, None)
            elif parameter not in self._seen:
                self._clear(parameter)
        else:
            self._filled.pop(parameter, None)
            if parameter in self._seen or added:
                flat.add_(grad)
            elif _is_large_bf16(grad):
                simd.widen(grad, flat)
            else:
                flat.copy_(grad)
        self._seen.add(parameter)
        if sums is not None:
            sums.mark_filled()
        parameter.grad = None
        self._add_rows(parameter)
        if self._missing:
            for bucket in self._buckets_of[parameter]:
                self._missing[bucket] -= 1
            self._send_complete_buckets()

    def _sum_tables(self) -> None:
        """Sum the gradients of each table over the ranks.

        The ranks exchange only rows if this transfers fewer bytes than an all-reduce of the table.
        If any rank has a gradient for the whole table, the table is all-reduced.
        """
        own_rows = [
            None if table in self._seen else joined(self.sinks.rows[table], table.shape[1])
            for table in self._tables
        ]
        counts = torch.empty(self._world_size, len(own_rows), dtype=torch.int64)
        lengths = torch.tensor(
            [-1 if rows is None else len(rows[0]) for rows in own_rows], dtype=torch.int64
        )
        self.traffic.add(counts.nbytes, self._world_size)
        with self.traffic:
            all_gather(counts.view(-1), lengths, self._group)
        for table, rows, of_ranks in zip(self._tables, own_rows, counts.T.tolist(), strict=True):
            flat = self._flat(table)
            if rows and min(of_ranks) >= 0 and max(of_ranks) * self._world_size < 2 * len(table):
                self._exchange_rows(table, *rows, of_ranks)
                continue
            self._filled.pop(table, None)
            if rows:
                flat.index_add_(0, *rows)
            else:
                self._add_rows(table)
            for part in bucket_slices(flat.numel(), flat.numel(), self._bucket_mb):
                self._waits.append(self._start_all_reduce(flat.view(-1)[part]))

    def _exchange_rows(
        self,
        table: torch.nn.Parameter,
        rows: torch.Tensor,
        values: torch.Tensor,
        counts: Sequence[int],
    ) -> None:
        """Add the row gradients of all ranks to a table's gradient, which must be 0 before.

        Args:
            rows: indices of the rows for which this rank has gradients.
            values: gradients of these rows.
            counts: number of rows that each rank sends.
        """
        most, ranks, width = max(*counts, 1), self._world_size, table.shape[1]
        padded = torch.zeros(most, dtype=rows.dtype)
        padded[: len(rows)] = rows
        wire = torch.zeros(most, width, dtype=torch.bfloat16 if self._bf16 else values.dtype)
        wire[: len(rows)] = values
        all_rows, all_values = padded.new_empty(ranks * most), wire.new_empty(ranks * most, width)
        self.traffic.add(all_rows.nbytes, ranks)
        self.traffic.add(all_values.nbytes, ranks)
        with self.traffic:
            all_gather(all_rows, padded, self._group)
            all_gather(all_values.view(-1), wire.view(-1), self._group)
        parts = zip(all_rows.split(most), all_values.split(most), counts, strict=True)
        for of_rank, gradients, count in parts:
            self._add(table, of_rank[:count], gradients[:count].float())

    def _add_rows(self, parameter: torch.nn.Parameter) -> None:
        waiting = self.sinks.rows[parameter]
        for rows, gradients in waiting:
            self._add(parameter, rows, gradients)
        waiting.clear()

    def _add(
        self, parameter: torch.nn.Parameter, rows: torch.Tensor, gradients: torch.Tensor
    ) -> None:
        self._flat(parameter).index_add_(0, rows, gradients)
        if parameter in self._filled:
            self._filled[parameter].append(rows)

    def _clear(self, parameter: torch.nn.Parameter) -> None:
        """Set a parameter's gradient to 0, except for rows that are already known to be 0."""
        if parameter in self._filled:
            for rows in self._filled[parameter]:
                self._flat(parameter).index_fill_(0, rows, 0)
        else:
            self._flat(parameter).zero_()
        if self._world_size == 1 or parameter in self._tables:  # no all-reduce writes other rows
            self._filled[parameter] = []

    def _flat(self, parameter: torch.nn.Parameter) -> torch.Tensor:
        return self.flat[self._slices[parameter]].view(parameter.shape)

    def _send_complete_buckets(self) -> None:
        while self._world_size > 1 and len(self._waits) < len(self.buckets):
            number = len(self._waits)
            if self._missing[number]:
                break
            self._waits.append(self._start_all_reduce(self._all[self.buckets[number]]))

    def _start_all_reduce(self, bucket: torch.Tensor) -> Callable[[], Any]:
        """Start the all-reduce of a bucket, and return a function that waits for it."""
        if self._bf16:
            for _ in range(2):
                self.traffic.add(bucket.nbytes // 2, self._world_size)
            return self._bf16.start(bucket, self._recorder(bucket.nbytes // 2)).result
        self.traffic.add(bucket.nbytes, self._world_size, passes=2)
        began, recorder = time.perf_counter(), self._recorder(bucket.nbytes)
        work = dist.all_reduce(bucket, group=self._group, async_op=True)
        if recorder:
            work.get_future().add_done_callback(lambda _: recorder(began))
        return work.wait  # type: ignore[no-any-return]

    def _recorder(self, sent: int) -> Callable[[float], None] | None:
        """Return a function that adds an all-reduce of `sent` bytes to the step's timeline."""
        if timeline := self.traffic.timeline:
            return partial(timeline.add, "exchange", note=f"{sent / 2**20:.3g} MiB")
        return None


def _is_large_bf16(grad: torch.Tensor) -> bool:
    if grad.dtype != torch.bfloat16 or grad.numel() <= simd.FEW_ELEMENTS:
        return False
    return simd.is_fit(grad) and grad.is_contiguous()


def joined(gradients: RowGradients, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Sum a table's row gradients over all micro-batches, and clear the list `gradients`.

    Args:
        gradients: row gradients of the table from each micro-batch.
        width: number of elements per row.

    Returns:
        The distinct row indices, and the summed gradient of each row.
    """
    no_rows = torch.empty(0, width, dtype=torch.float32)
    parts = [(torch.empty(0, dtype=torch.int64), no_rows)]
    parts += gradients
    gradients.clear()
    if len(parts) == 2:
        return parts[1]
    numbers = torch.cat([rows for rows, _ in parts])
    rows, places = torch.unique(numbers, return_inverse=True)
    sums = torch.zeros(len(rows), width, dtype=torch.float32)
    return rows, sums.index_add_(0, places, torch.cat([values for _, values in parts]))


def without(whole: slice, holes: Sequence[slice]) -> Iterator[slice]:
    """Yield the parts of the slice `whole` that are outside the slices `holes`.

    >>> list(without(slice(0, 10), [slice(4, 6), slice(8, 20)]))
    [slice(0, 4, None), slice(6, 8, None)]
    """
    start = whole.start
    for hole in sorted(holes, key=lambda hole: int(hole.start)):
        if hole.start >= whole.stop or hole.stop <= start:
            continue
        if hole.start > start:
            yield slice(start, hole.start)
        start = hole.stop
    if start < whole.stop:
        yield slice(start, whole.stop)


def bucket_slices(
    decayed: int, end: int, bucket_mb: int | None = None, multiple: int = 1
) -> list[slice]:
    """Divide the flat gradients into buckets, and return their slices in the order they fill up.

    The backward pass starts with the last layers, so the buckets of these layers come first.
    The buckets of biases and norms come last, because they are complete only after the pass has
    reached the first layer.

    Args:
        decayed: number of elements with weight decay, which come first in the flat tensor.
        end: number of elements of the flat tensor.
        bucket_mb: maximum size of a bucket in fp32, in MiB; None means 25.
        multiple: the length of each bucket is a multiple of this number if `decayed` and `end` are.
    """
    most = bucket_mb * FP32_PER_MIB if bucket_mb else BUCKET
    size = max(most // multiple, 1) * multiple
    matrices = [slice(b, min(b + size, decayed)) for b in range(0, decayed, size)]
    return matrices[::-1] + [slice(b, min(b + size, end)) for b in range(decayed, end, size)]
