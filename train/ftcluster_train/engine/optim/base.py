"""The interface of optimizers for the training loop, and the state for resuming a training."""

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
        own: elements of the part that this rank has.
        length: number of elements of the whole part.
        sharded: True if each rank has an equal piece, with padding at the end of the last pieces.
    """

    own: torch.Tensor
    length: int
    sharded: bool

    def whole(self, memory: torch.Tensor, group: dist.ProcessGroup | None = None) -> torch.Tensor:
        """Return all elements of the part; if it is sharded, every rank must call it.

        Args:
            memory: buffer for the elements, see `gather_memory`.
        """
        if not self.sharded:
            return self.own
        pieces = memory[: len(self.own) * dist.get_world_size(group)]
        all_gather(pieces, self.own, group)
        return pieces[: self.length]


def gather_memory(parts: Iterable[StatePart]) -> torch.Tensor:
    """Return a buffer that is large enough for any of these parts, in fp32.

    One buffer is used for all parts in turn, because malloc would leave gaps between large tensors.
    Only sharded parts need it.
    """
    longest = max((len(part.own) for part in parts if part.sharded), default=0)
    return torch.empty(longest and longest * dist.get_world_size(), dtype=torch.float32)


class State:
    """Named tensors whose size does not depend on the number of ranks.

    Args:
        tensors: parts of each tensor, in order.

    Attributes:
        gather_seconds: time in seconds that `pieces` has waited for other ranks.
    """

    def __init__(self, tensors: Mapping[str, Sequence[StatePart]]) -> None:
        self._tensors = tensors
        self.gather_seconds = 0.0

    @classmethod
    def of(cls, tensors: Mapping[str, torch.Tensor]) -> "State":
        """Return the state of a rank that has all elements."""
        return cls({name: [StatePart(t, t.numel(), False)] for name, t in tensors.items()})

    @property
    def sharded(self) -> bool:
        """True if ranks have different pieces."""
        return any(part.sharded for parts in self._tensors.values() for part in parts)

    @property
    def header(self) -> Header:
        """The dtype and shape of each tensor."""
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
        """The size of the whole tensors in bytes."""
        parts = (part for parts in self._tensors.values() for part in parts)
        return sum(part.length * part.own.itemsize for part in parts)

    @property
    def own_nbytes(self) -> int:
        """The size of this rank's elements in bytes."""
        return sum(part.own.nbytes for parts in self._tensors.values() for part in parts)

    def pieces(self, group: dist.ProcessGroup | None = None) -> Iterator[torch.Tensor]:
        """Yield the elements of all tensors in the order of `header`; every rank must exhaust it.

        Each piece is valid until the next one is requested.
        """
        memory = gather_memory(part for parts in self._tensors.values() for part in parts)
        for parts in self._tensors.values():
            for part in parts:
                began = time.monotonic()
                whole = part.whole(memory, group)
                self.gather_seconds += time.monotonic() - began
                yield whole

    def load(self, values: Mapping[str, torch.Tensor], source: int) -> None:
        """Load the values that one rank has; every rank calls it.

        Args:
            values: whole tensors on rank `source`; the other ranks ignore it.
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
        """Return a new state for `copy`; its memory is touched, so each copy costs the same."""
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
        """Copy this rank's values from another state."""
        for name, parts in self._tensors.items():
            for part, source in zip(parts, other._tensors[name], strict=True):
                part.own.copy_(source.own)


def exhaust(pieces: Iterator[torch.Tensor]) -> None:
    """Iterate over pieces without writing them, so that other ranks can gather theirs."""
    deque(pieces, maxlen=0)


class OptimizerStep(ABC):
    """The step from the loss of a batch to the next weights; every rank calls each method.

    Attributes:
        adamw: torch's optimizer, for the learning rate schedule.
        control_flags: values that `step` sums over the ranks, shape (CONTROL_FLAGS,); set them
            before the backward pass.
        traffic: counters of this rank's communication volume and waiting time.
        pending_gathers: weights that the model must not read yet after a step.
        context: context to enter for every pass through the model.
    """

    adamw: torch.optim.Optimizer
    control_flags: torch.Tensor
    traffic: Traffic
    pending_gathers: PendingGathers
    context: BatchContext

    def start_batch(self, by_rank: Sequence[float]) -> None:  # noqa: B027 - most sum over all ranks
        """Set the weight of each rank's samples in the next batch's mean."""

    @abstractmethod
    def backward(self, loss: torch.Tensor, last: bool) -> None:
        """Add the gradients of a micro-batch; the last micro-batch of a step all-reduces them."""

    @abstractmethod
    def step(self) -> float:
        """Clip the gradients, update the weights, and return the norm before clipping.

        If the norm is not finite, the weights stay unchanged.
        """

    def synchronize(self) -> None:  # noqa: B027 - most have them the same
        """Make the weights of all ranks equal, if ranks take local steps."""

    @abstractmethod
    def digest(self) -> str:
        """Return the SHA-256 of the weights that all ranks share, in fp32, and of saved buffers.

        It differs on a rank whose model does not run on these weights.
        """

    @abstractmethod
    def gradients_digest(self) -> str:
        """Return a hash of the summed gradients of the last step."""

    @abstractmethod
    def state(self) -> State | None:
        """Return all tensors that the next steps depend on, not copied; None if unsupported."""

    def state_loaded(self, step: int) -> None:  # noqa: B027 - not called without a state
        """Prepare for the next steps after `state` was loaded with the values after `step`."""

    @abstractmethod
    def detach(self, wanted: bool = True) -> PreTrainedModel:
        """Return the model in fp32 with tensors of its own, as `from_pretrained` would load it.

        Args:
            wanted: False if this rank does not use the model, so its weights are undefined.
        """

    def attach(self) -> None:  # noqa: B027 - no-op if `detach` makes a copy
        """Undo `detach`, so that training can continue."""
