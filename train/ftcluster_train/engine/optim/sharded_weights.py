"""Sharded model weights: all weights in the model's dtype, but only this rank's pieces in fp32."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist

from ftcluster_train.comm.reduce_scatter import start_all_gather
from ftcluster_train.comm.traffic import Traffic
from ftcluster_train.engine.optim.base import StatePart, gather_memory
from ftcluster_train.engine.optim.flat_params import (
    ALIGNMENT,
    FlatLayout,
    ModelWeights,
    PendingGathers,
    add_buffers,
)
from ftcluster_train.engine.optim.gradient_buckets import bucket_slices


@dataclass(frozen=True)
class Bucket:
    """A part of the flat weights, divided into equal pieces, one for each rank.

    Attributes:
        place: range of the bucket in the flat tensor.
        length: number of elements in the bucket, without the padding at the end.
        own: range of this rank's piece in the flat tensor.
        parameters: parameters with at least one element in the bucket.
        has_norms: True if the model uses some weights in the bucket in fp32.
        bf16_gradients: True if torch computes all of the bucket's gradients in bf16.
    """

    place: slice
    length: int
    own: slice
    parameters: tuple[torch.nn.Parameter, ...]
    has_norms: bool
    bf16_gradients: bool


class ShardedWeights(ModelWeights):
    """All weights in the model's dtype, and this rank's pieces of the weights in fp32.

    The optimizer updates `masters`. Then `start_gather` rounds the updated weights to the model's
    dtype and sends them to all ranks. Embeddings also read the rounded weights.

    Attributes:
        pending_gathers: weights whose all-gather is not complete yet.
        buckets: buckets in the order in which the backward pass fills them.
        masters: this rank's piece of each bucket, in fp32; views of `model_weights` if the model
            uses fp32.
        traffic: counters of the bytes sent for weights and gradients.

    Args:
        bucket_mb: maximum size of a bucket in fp32, in MiB; None means 25.
    """

    def __init__(
        self, model: torch.nn.Module, dtype: torch.dtype, bucket_mb: int | None = None
    ) -> None:
        self.traffic = Traffic()
        multiple = ALIGNMENT * dist.get_world_size()
        super().__init__(model, dtype, FlatLayout(model, multiple))
        fp32 = dtype == torch.float32
        layout = self.layout
        embeddings = {m.weight for m in model.modules() if isinstance(m, torch.nn.Embedding)}
        self.buckets: list[Bucket] = []
        for place in bucket_slices(layout.decayed, layout.elements, bucket_mb, multiple):
            group = int(place.start >= layout.decayed)
            end = layout.groups[group].start + layout.lengths[group]
            piece = (place.stop - place.start) // dist.get_world_size()
            start = place.start + piece * dist.get_rank()
            inside = [p for p, of in layout.slices.items() if len_of(overlap(of, place))]
            norms = [p in self.norms for p in inside]
            exact = not fp32 and not any(norms) and embeddings.isdisjoint(inside)
            self.buckets.append(
                Bucket(place, min(place.stop, end) - place.start, slice(start, start + piece),
                       tuple(inside), any(norms), exact)
            )  # fmt: skip
        self.masters = [
            self.model_weights[bucket.own]
            if fp32
            else torch.zeros(len_of(bucket.own), dtype=torch.float32)
            for bucket in self.buckets
        ]
        self.pending_gathers = PendingGathers()
        self._gathers: dict[int, tuple[dist.Work, torch.Tensor]] = {}  # by bucket index
        self.buckets_of: dict[torch.nn.Parameter, list[int]] = {p: [] for p in layout.slices}
        for number, bucket in enumerate(self.buckets):
            for parameter in bucket.parameters:
                self.buckets_of[parameter].append(number)
        for parameter, place in layout.slices.items():
            data = parameter.data.flatten()
            self.model_weights[place] = data
            for number in self.buckets_of[parameter]:
                own = self.buckets[number].own
                common = overlap(place, own)
                self.masters[number][moved(common, own)] = data[moved(common, place)]
            if parameter in self.norms:
                self.fp32_weights[parameter] = (
                    self.model_weights[place].view(parameter.shape) if fp32 else parameter.data
                )
            self.attach_parameter(parameter)  # frees the parameter's old tensor
        self.attach()

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def start_gather(self) -> None:
        """Start to gather the updated weights from all ranks; call this method after each step.

        The gather overlaps with the next forward pass, so it starts with the weights of the first
        layers.
        """
        for number in reversed(range(len(self.buckets))):
            bucket, master = self.buckets[number], self.masters[number]
            fp32 = bucket.has_norms and self.model_weights.dtype != torch.float32
            whole = self.model_weights[bucket.place]
            if fp32:
                whole = torch.empty(len_of(bucket.place), dtype=torch.float32)
            piece = master if fp32 else self.model_weights[bucket.own].copy_(master)
            self.traffic.add(whole.nbytes, dist.get_world_size())
            self._gathers[number] = start_all_gather(whole, piece), whole
        self.pending_gathers.update({p: partial(self._wait_for, p) for p in self.buckets_of})

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def _wait_for(self, parameter: torch.nn.Parameter) -> None:
        del self.pending_gathers[parameter]
        for number in self.buckets_of[parameter]:
            if number in self._gathers:
                work, whole = self._gathers.pop(number)
                with self.traffic:
                    work.wait()
                bucket = self.buckets[number]
                if whole.dtype != self.model_weights.dtype:
                    self._model_weights_of(bucket).copy_(whole[: bucket.length])
                    for weights, place in self._norms_in(bucket):
                        weights.copy_(whole[place])

    def whole_buckets(self) -> Iterator[tuple[Bucket, torch.Tensor]]:
        """Yield each bucket with its fp32 weights, in the order of the flat tensor.

        The yielded weights are valid only until the next bucket is requested. Every rank must
        exhaust the iterator.
        """
        parts = [
            StatePart(master, bucket.length, sharded=True)
            for bucket, master in zip(self.buckets, self.masters, strict=True)
        ]
        memory = gather_memory(parts)
        for number in self.flat_order:
            yield self.buckets[number], parts[number].whole(memory)

    @property
    def flat_order(self) -> list[int]:
        """The indices of the buckets in the order of the flat tensor."""
        return sorted(range(len(self.buckets)), key=lambda n: int(self.buckets[n].place.start))

    def digest(self) -> str:
        """Return the SHA-256 of all fp32 weights and of the buffers that are saved with the model.

        If a rank's model uses different weights, the hash of this rank differs.
        """
        self.pending_gathers.wait()
        digest = hashlib.sha256()
        for bucket, whole in self.whole_buckets():
            digest.update(whole.numpy())
            rounded = whole.to(self.model_weights.dtype)
            if not torch.equal(self._model_weights_of(bucket), rounded) or not all(
                torch.equal(weights, whole[place]) for weights, place in self._norms_in(bucket)
            ):
                digest.update(b"the model runs on other weights")
        add_buffers(digest, self.saved_buffers)
        return digest.hexdigest()

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def detach(self, wanted: bool) -> None:
        """Assign a separate fp32 tensor to each parameter; every rank must call this method.

        This method does nothing if the parameters already have separate tensors.

        Args:
            wanted: False if this rank does not use the weights.
        """
        if not self.attached:
            return
        self.pending_gathers.wait()
        slices = self.layout.slices if wanted else {}
        weights = {p: torch.empty(p.shape, dtype=torch.float32) for p in slices}
        for bucket, whole in self.whole_buckets():
            for parameter in bucket.parameters if wanted else ():
                place = slices[parameter]
                common = overlap(place, bucket.place)
                flat = weights[parameter].view(-1)
                flat[moved(common, place)] = whole[moved(common, bucket.place)]
        if wanted:
            self.give(weights)
        self.attached = False

    def _model_weights_of(self, bucket: Bucket) -> torch.Tensor:
        """Return the model weights of a bucket, without padding."""
        return self.model_weights[bucket.place][: bucket.length]

    def _norms_in(self, bucket: Bucket) -> Iterator[tuple[torch.Tensor, slice]]:
        """Yield the fp32 weights of each norm in a bucket, and the range that they have in it."""
        for parameter in bucket.parameters:
            if parameter in self.norms:
                place = self.layout.slices[parameter]
                common = overlap(place, bucket.place)
                flat = self.fp32_weights[parameter].view(-1)
                yield flat[moved(common, place)], moved(common, bucket.place)


def overlap(left: slice, right: slice) -> slice:
    """Return the intersection of two slices, which may be empty."""
    start = max(left.start, right.start)
    return slice(start, max(start, min(left.stop, right.stop)))


def moved(part: slice, whole: slice) -> slice:
    """Return the slice `part` with indices that count from the start of the slice `whole`."""
    return slice(part.start - whole.start, part.stop - whole.start)


def len_of(part: slice) -> int:
    """Return the number of elements of a slice."""
    return int(part.stop - part.start)
