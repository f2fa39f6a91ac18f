"""The interface between the training loop and its optimizers, and the state for resuming."""

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from transformers import PreTrainedModel

from ftcluster_train.comm.reduce_scatter import all_gather
from ftcluster_train.comm.traffic import Traffic
from ftcluster_train.engine.optim.flat_params import PendingGathers
from ftcluster_train.patching.batch_context import BatchContext

Header = Mapping[str, tuple[torch.dtype, list[int]]]  # dtype and shape of each tensor


@dataclass(frozen=True)
class StatePart:
    """A contiguous part of a tensor.

    Attributes:
        own: elements that this rank stores.
        length: number of elements of the whole part, without padding.
        sharded: True if the part is divided into equal pieces, one for each rank, with padding at
            the end. False if every rank stores the whole part.
    """

    own: torch.Tensor
    length: int
    sharded: bool

    def whole(self, memory: torch.Tensor, group: dist.ProcessGroup | None = None) -> torch.Tensor:
        """Return all elements of the part.

        If the part is sharded, every rank must call this method.

        Args:
            memory: buffer for the gathered elements, see `gather_memory`.
        """
        if not self.sharded:
            return self.own
        pieces = memory[: len(self.own) * dist.get_world_size(group)]
        all_gather(pieces, self.own, group)
        return pieces[: self.length]


def gather_memory(parts: Iterable[StatePart]) -> torch.Tensor:
    """Return an fp32 buffer for `StatePart.whole`, large enough for the largest of these parts.

    Callers reuse one buffer for all parts, because separate large buffers would fragment the heap.
    Only sharded parts need a buffer.
    """
    longest = max((len(part.own) for part in parts if part.sharded), default=0)
    return torch.empty(longest and longest * dist.get_world_size(), dtype=torch.float32)


class State:
    """The tensors from which training can resume, by name.

    The sizes of the tensors do not depend on the number of ranks, so a run can resume with a
    different number of ranks.

    Args:
        tensors: ordered parts of each tensor, by tensor name.

    Attributes:
        gather_seconds: total time in seconds that `pieces` has spent gathering the parts.
    """

    def __init__(self, tensors: Mapping[str, Sequence[StatePart]]) -> None:
        self._tensors = tensors
        self.gather_seconds = 0.0

    @classmethod
    def of(cls, tensors: Mapping[str, torch.Tensor]) -> "State":
        """Return a state of unsharded tensors: every rank has all elements of each tensor."""
        return cls({name: [StatePart(t, t.numel(), False)] for name, t in tensors.items()})

    @property
    def sharded(self) -> bool:
        """True if any tensor is divided among the ranks."""
        return any(part.sharded for parts in self._tensors.values() for part in parts)

    @property
    def header(self) -> Header:
        """The dtype and shape of each tensor, by name."""
        return {
            name: (
                parts[0].own.dtype,
                [sum(part.length for part in parts)]
                if parts[0].sharded
                else list(parts[0].own.shape),
            )
            for name, parts in self._tensors.items()
        }

    @property
    def nbytes(self) -> int:
        """The total size of all tensors in bytes, over all ranks."""
        parts = (part for parts in self._tensors.values() for part in parts)
        return sum(part.length * part.own.itemsize for part in parts)

    @property
    def own_nbytes(self) -> int:
        """The total size in bytes of the elements that this rank stores."""
        return sum(part.own.nbytes for parts in self._tensors.values() for part in parts)

    def pieces(self, group: dist.ProcessGroup | None = None) -> Iterator[torch.Tensor]:
        """Yield the elements of all tensors in pieces, in the order of `header`.

        Each piece is valid until the next piece is requested. Every rank must exhaust the iterator.
        """
        memory = gather_memory(part for parts in self._tensors.values() for part in parts)
        for parts in self._tensors.values():
            for part in parts:
                began = time.monotonic()
                whole = part.whole(memory, group)
                self.gather_seconds += time.monotonic() - began
                yield whole

    def load(self, values: Mapping[str, torch.Tensor], source: int) -> None:
        """Send the values from one rank to all ranks, and load them.

        Every rank must call this method.

        Args:
            values: complete tensors by name; only the values on rank `source` are used.
            source: rank that sends its values.
        """
        for name, parts in self._tensors.items():
            start = 0
            for part in parts:
                whole = part.own
                if part.sharded:
                    whole = part.own.new_zeros(len(part.own) * dist.get_world_size())
                if dist.get_rank() == source:
                    piece = values[name].reshape(-1)[start : start + part.length]
                    whole.view(-1)[: part.length] = piece
                dist.broadcast(whole, source)
                if part.sharded:
                    part.own.copy_(whole.view(-1, len(part.own))[dist.get_rank()])
                start += part.length

    def like(self) -> "State":
        """Return a new state with tensors of the same sizes, as a target for `copy`.

        This method writes to the new tensors once, so that the first copy is as fast as later ones.
        """
        return State(
            {
                name: [
                    StatePart(torch.empty_like(part.own).zero_(), part.length, part.sharded)
                    for part in parts
                ]
                for name, parts in self._tensors.items()
            }
        )

    def copy(self, other: "State") -> None:
        """Copy this rank's elements from another state into this state."""
        for name, parts in self._tensors.items():
            for part, source in zip(parts, other._tensors[name], strict=True):
                part.own.copy_(source.own)


def exhaust(pieces: Iterator[torch.Tensor]) -> None:
    """Exhaust an iterator of `State.pieces`, because other ranks wait for this rank's pieces."""
    deque(pieces, maxlen=0)


class OptimizerStep(ABC):
    """The optimizer step: run backward passes, reduce the gradients and update the weights.

    Every rank must call each method.

    Attributes:
        adamw: torch's optimizer, whose learning rate the schedule sets.
        control_flags: values that are summed over the ranks in each step, shape (CONTROL_FLAGS,);
            set them before the backward pass, and read the sums after `step`.
        traffic: counters of this rank's communication volume and waiting time.
        pending_gathers: weights that the model must not read until their gather is complete.
        context: batch context to enter for every forward and backward pass of the model.
    """

    adamw: torch.optim.Optimizer
    control_flags: torch.Tensor
    traffic: Traffic
    pending_gathers: PendingGathers
    context: BatchContext

    def start_batch(self, by_rank: Sequence[float]) -> None:  # noqa: B027 - most sum over all ranks
        """Set how much each rank counts in the mean loss of the next batch.

        Args:
            by_rank: weight of each rank, such as its number of samples.
        """

    @abstractmethod
    def backward(self, loss: torch.Tensor, last: bool) -> None:
        """Run the backward pass of a micro-batch, and add its gradients to those of the step.

        Args:
            last: True for the last micro-batch of a step. Its backward pass also sums the gradients
                over the ranks.
        """

    @abstractmethod
    def step(self) -> float:
        """Clip the gradients, update the weights, and return the gradients' norm before clipping.

        If the norm is not finite, the weights stay unchanged.
        """

    def synchronize(self) -> None:  # noqa: B027 - most optimizers need no synchronization
        """Make the weights equal on all ranks; they differ only after local steps."""

    @abstractmethod
    def digest(self) -> str:
        """Return the SHA-256 of the fp32 weights and saved buffers, to compare between ranks.

        If a rank's model uses different weights, the hash of this rank differs.
        """

    @abstractmethod
    def gradients_digest(self) -> str:
        """Return a hash of the last step's summed gradients, to compare between ranks."""

    @abstractmethod
    def state(self) -> State | None:
        """Return all tensors that later steps depend on; None if this optimizer cannot resume.

        The returned state refers to the live tensors, not to copies.
        """

    def state_loaded(self, step: int) -> None:  # noqa: B027 - not called without a state
        """Prepare to continue after step `step`, after its tensors were loaded into `state`."""

    @abstractmethod
    def detach(self, wanted: bool = True) -> PreTrainedModel:
        """Return the model with a separate fp32 tensor per weight, as `from_pretrained` loads it.

        Args:
            wanted: False if this rank does not save the returned model. Its weights then keep the
                dtype that is used for training.
        """

    def attach(self) -> None:  # noqa: B027 - no-op if `detach` makes a copy
        """Undo `detach`, so that training can continue."""
