"""The sharded optimizer: each rank updates only its own pieces of the weights.

As in ZeRO's stage 2 (Rajbhandari et al. 2019), a step has three phases: a reduce-scatter of the
gradients, AdamW on this rank's pieces, and an all-gather of the weights in the model's dtype. The
all-gather overlaps with the next forward pass.
"""

import math
from collections import defaultdict, deque

import torch
import torch.distributed as dist
from transformers import PreTrainedModel

from ftcluster_common.recipe import Training
from ftcluster_train.comm.reduce_scatter import ReduceScatter
from ftcluster_train.engine.optim.base import OptimizerStep, State, StatePart
from ftcluster_train.engine.optim.flat_params import ALIGNMENT, add_gradient_hook
from ftcluster_train.engine.optim.flat_step import AdamW, norm_of
from ftcluster_train.engine.optim.gradient_buckets import CONTROL_FLAGS
from ftcluster_train.engine.optim.sharded_weights import Bucket, ShardedWeights, moved, overlap
from ftcluster_train.patching.batch_context import GradientSinks, RowGradients

IN_FLIGHT = 2  # maximum number of concurrent reduce-scatters, each of which needs a buffer


class ShardedGradients:
    """Sums gradients over micro-batches and ranks, in fp32 (ZeRO's stage 2).

    As soon as the backward pass has computed a parameter's gradient, a hook copies the gradient
    into the buffer of the parameter's bucket and frees the original. A complete bucket is
    reduce-scattered, and its buffer is then reused for another bucket. Each rank thus sends its
    gradients in every backward pass, and never has all gradients in memory. Row gradients
    (`sinks.rows`) are added together with the gradient of their parameter.

    All ranks send the buckets in the same order. After the first step, they use the order in which
    rank 0 completed the buckets. If the loss does not depend on a parameter, the parameter's bucket
    is complete only at the end of the backward pass. Such buckets are sent last, so that they do
    not delay the other buckets.

    Args:
        dtype: dtype in which gradients are sent: fp32, bf16, or auto. With auto, a bucket is
            sent in bf16 if torch computes all its gradients in bf16, and in fp32 otherwise, so no
            gradient is rounded.
        rounds: number of backward passes per step; a rank with fewer passes sends zeros.

    Attributes:
        sums: this rank's piece of the summed gradients of each bucket, in fp32.
        sinks: destinations of row gradients that kernels compute, for `BatchContext`.
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
        self._seen: set[torch.nn.Parameter] = set()  # parameters with a gradient in this pass
        self._missing: list[int] = []  # number of missing gradients of each bucket
        self._order = list(range(len(weights.buckets)))  # order in which buckets are sent
        self._completed: list[int] | None = []  # None after the first backward pass
        self._sent = 0  # number of buckets sent in this backward pass
        self._filling: dict[int, torch.Tensor] = {}  # buffers by bucket index
        self._flight: deque[tuple[int, bool, ReduceScatter]] = deque()  # bucket index, True to add
        self._free: defaultdict[tuple[torch.dtype, int], list[torch.Tensor]] = defaultdict(list)
        rows: dict[torch.Tensor, RowGradients] = {p: [] for p in weights.layout.slices}
        self.sinks = GradientSinks(rows=rows)
        for parameter in weights.layout.slices:
            add_gradient_hook(parameter, self._add_gradient)

    def start_backward(self) -> None:
        """Prepare for the next backward pass."""
        self._round += 1
        self._seen.clear()
        self._missing = [len(bucket.parameters) for bucket in self._weights.buckets]
        self._sent = 0

    def finish_backward(self) -> None:
        """Add zeros or row gradients for parameters that got no other gradient in this pass."""
        for number in self._order:
            for parameter in self._weights.buckets[number].parameters:
                if parameter not in self._seen:
                    self._add_gradient(parameter)

    def wait(self) -> list[torch.Tensor]:
        """Wait for all reduce-scatters of a step, and return `sums`.

        Call this method after the last backward pass of the step.
        """
        while self._round < self._rounds:
            self.start_backward()
            self.finish_backward()
        self._round = 0
        while self._flight:
            self._finish_oldest()
        if self._completed is not None:
            order = torch.tensor(self._completed[: len(self._order)], dtype=torch.int64)
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
        self.sinks.rows[parameter].clear()

    def _fill(
        self, parameter: torch.nn.Parameter, gradient: torch.Tensor | None, number: int
    ) -> None:
        """Write a parameter's gradient into a bucket's buffer, and zeros into the padding after it.

        Args:
            gradient: gradient of the parameter, or None if only row gradients exist.
            number: index of the bucket.
        """
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
        for rows, values in self.sinks.rows[parameter]:
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
        """Return a buffer for a bucket, with undefined contents."""
        kind = self._dtypes[number], len(self.sums[number]) * dist.get_world_size()
        free = self._free[kind]
        return free.pop() if free else torch.empty(kind[1], dtype=kind[0])


def elements_of_rows(rows: torch.Tensor, values: torch.Tensor, within: slice) -> torch.Tensor:
    """Return a range of a flattened matrix that is 0 except for values added to some rows.

    Args:
        rows: row indices, which may repeat, shape (n,).
        values: values to add to these rows, shape (n, width).
        within: range of the flattened matrix to return.

    Returns:
        The elements in this range, shape (elements,).
    """
    width = values.shape[1]
    first, end = within.start // width, -(-within.stop // width)
    inside = (rows >= first) & (rows < end)
    dense = torch.zeros(end - first, width, dtype=torch.float32)
    dense.index_add_(0, rows[inside] - first, values[inside])
    return dense.view(-1)[within.start - first * width : within.stop - first * width]


class ShardedOptimizerStep(OptimizerStep):
    """AdamW on the pieces of the weights that belong to this rank.

    Args:
        model: model in fp32; its parameters are in `dtype` afterwards.
        rounds: maximum number of micro-batches per rank and step.
    """

    def __init__(
        self, model: PreTrainedModel, training: Training, dtype: torch.dtype, rounds: int
    ) -> None:
        self._model = model
        self.weights = ShardedWeights(model, dtype, training.ddp_bucket_cap_mb)
        self.pending_gathers = self.weights.pending_gathers
        self.gradients = ShardedGradients(self.weights, training.gradient_dtype, rounds)
        self.context = self.weights.context(self.gradients.sinks, self.pending_gathers)
        self.control_flags = torch.zeros(CONTROL_FLAGS, dtype=torch.float32)
        self.traffic = self.weights.traffic
        self._max_norm, self._norm = training.max_grad_norm, 0.0
        for master, gradients in zip(self.weights.masters, self.gradients.sums, strict=True):
            master.grad = gradients
        border = self.weights.layout.decayed
        self._groups = [  # bucket indices in the order of the flat tensor
            [
                n
                for n in self.weights.flat_order
                if (self._bucket(n).place.start < border) == decayed
            ]
            for decayed in (True, False)
        ]
        groups = [
            {"params": [self.weights.masters[n] for n in numbers], "weight_decay": decay}
            for numbers, decay in zip(self._groups, (training.weight_decay, 0.0), strict=True)
            if numbers
        ]
        self.adamw = AdamW(groups, training)

    def backward(self, loss: torch.Tensor, last: bool) -> None:  # noqa: ARG002 - each pass sends
        self.gradients.start_backward()
        loss.backward()
        self.gradients.finish_backward()

    def step(self) -> float:
        squares = sum(float(norm_of(sums)) ** 2 for sums in self.gradients.wait())
        totals = torch.tensor([squares, *self.control_flags.tolist()], dtype=torch.float64)
        self.traffic.add(totals.nbytes, dist.get_world_size(), passes=2)
        with self.traffic:
            dist.all_reduce(totals)
        self.control_flags.copy_(totals[1:])
        self._norm = math.sqrt(totals[0])
        if not math.isfinite(self._norm):
            return self._norm
        if self._max_norm > 0:  # clip by grad_scale: AdamW divides the gradients by it
            scale = max(1.0, self._norm / self._max_norm)
            self.adamw.grad_scale = torch.tensor(scale, dtype=torch.float32)
        self.pending_gathers.wait()  # gathers of weights that the model has not read
        self.adamw.step()
        self.weights.start_gather()
        return self._norm

    def digest(self) -> str:
        return self.weights.digest()

    def gradients_digest(self) -> str:
        """Return the norm of the gradients, because each rank has different gradients."""
        return self._norm.hex()

    def state(self) -> State:
        def parts(tensors: dict[int, torch.Tensor]) -> list[StatePart]:
            return [StatePart(piece, self._bucket(n).length, True) for n, piece in tensors.items()]

        masters = self.weights.masters
        tensors = {"master_weights": parts({n: masters[n] for n in self.weights.flat_order})}
        for group, numbers in enumerate(filter(None, self._groups)):
            moments = {n: self.adamw.moments(masters[n]) for n in numbers}
            for name in ("exp_avg", "exp_avg_sq"):
                tensors[f"{name}_{group}"] = parts({n: moments[n][name] for n in numbers})
        for number, buffer in enumerate(self.weights.saved_buffers):
            tensors[f"buffer_{number}"] = [StatePart(buffer, buffer.numel(), sharded=False)]
        return State(tensors)

    def state_loaded(self, step: int) -> None:
        for moments in self.adamw.state.values():
            moments["step"].fill_(step)
        self.weights.start_gather()

    def detach(self, wanted: bool = True) -> PreTrainedModel:
        self.weights.detach(wanted)
        return self._model

    def attach(self) -> None:
        self.weights.attach()

    def _bucket(self, number: int) -> Bucket:
        return self.weights.buckets[number]
