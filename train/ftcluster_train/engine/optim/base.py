"""What the training loop needs of an optimizer, and the state that its next steps depend on."""

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
    """A part of a tensor.

    Attributes:
        own: what this rank has of it.
        length: elements of the whole part.
        sharded: whether each rank has an equal piece of it, the last ones with padding.
    """

    own: torch.Tensor
    length: int
    sharded: bool

    def whole(self, memory: torch.Tensor, group: dist.ProcessGroup | None = None) -> torch.Tensor:
        """All elements; if the part is sharded, every rank calls it.

        Args:
            memory: see `gather_memory`.
        """
        if not self.sharded:
            return self.own
        pieces = memory[: len(self.own) * dist.get_world_size(group)]
        all_gather(pieces, self.own, group)
        return pieces[: self.length]


def gather_memory(parts: Iterable[StatePart]) -> torch.Tensor:
    """Memory for the elements of any of these parts, which are fp32 where they are sharded.

    It is used for one after the other, because malloc would leave gaps between large tensors.
    """
    longest = max((len(part.own) for part in parts if part.sharded), default=0)
    return torch.empty(longest and longest * dist.get_world_size(), dtype=torch.float32)


class State:
    """Named tensors of the same size on any number of ranks.

    Args:
        tensors: the parts of each, in their order.

    Attributes:
        gather_seconds: that `pieces` has waited for other ranks.
    """

    def __init__(self, tensors: Mapping[str, Sequence[StatePart]]) -> None:
        self._tensors = tensors
        self.gather_seconds = 0.0

    @classmethod
    def of(cls, tensors: Mapping[str, torch.Tensor]) -> "State":
        """The state of a rank that has all of it."""
        return cls({name: [StatePart(t, t.numel(), False)] for name, t in tensors.items()})

    @property
    def sharded(self) -> bool:
        """Whether ranks have different pieces."""
        return any(part.sharded for parts in self._tensors.values() for part in parts)

    @property
    def header(self) -> Header:
        """Dtype and shape of each tensor."""
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
        """The bytes of the whole tensors."""
        parts = (part for parts in self._tensors.values() for part in parts)
        return sum(part.length * part.own.itemsize for part in parts)

    @property
    def own_nbytes(self) -> int:
        """The bytes of what this rank has."""
        return sum(part.own.nbytes for parts in self._tensors.values() for part in parts)

    def pieces(self, group: dist.ProcessGroup | None = None) -> Iterator[torch.Tensor]:
        """The elements of all tensors in the order of `header`; every rank goes through all.

        Each is valid until the next one.
        """
        memory = gather_memory(part for parts in self._tensors.values() for part in parts)
        for parts in self._tensors.values():
            for part in parts:
                began = time.monotonic()
                whole = part.whole(memory, group)
                self.gather_seconds += time.monotonic() - began
                yield whole

    def load(self, values: Mapping[str, torch.Tensor], source: int) -> None:
        """Take other values from one rank; every rank calls it.

        Args:
            values: on rank `source`, the whole tensors; not used on the others.
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
        """Another state, for `copy`; its memory is written, so that each copy costs the same."""
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
        """Take the values of another state, those that this rank has."""
        for name, parts in self._tensors.items():
            for part, source in zip(parts, other._tensors[name], strict=True):
                part.own.copy_(source.own)


def exhaust(pieces: Iterator[torch.Tensor]) -> None:
    """Go through pieces that this rank does not write, for the sake of those that do."""
    deque(pieces, maxlen=0)


class OptimizerStep(ABC):
    """From the loss of a batch to the next weights; every rank calls each method.

    Attributes:
        adamw: torch's optimizer, for the learning rate schedule.
        control_flags: shape (CONTROL_FLAGS,), numbers that `step` sums over the ranks; set them
            before the backward pass.
        traffic: what this rank has sent and waited for.
        pending_gathers: weights that the model may not read yet after a step.
        context: what passes through the model need of its parameters; entered for each of them.
    """

    adamw: torch.optim.Optimizer
    control_flags: torch.Tensor
    traffic: Traffic
    pending_gathers: PendingGathers
    context: BatchContext

    def start_batch(self, by_rank: Sequence[float]) -> None:  # noqa: B027 - most sum over all ranks
        """Take note of what the samples of each rank count in the next batch's mean."""

    @abstractmethod
    def backward(self, loss: torch.Tensor, last: bool) -> None:
        """Add the gradients of a micro-batch; with the last one of a step they are all-reduced."""

    @abstractmethod
    def step(self) -> float:
        """Clip the gradients and update the weights; returns the norm before clipping.

        A norm that is not finite leaves the weights as they are.
        """

    def synchronize(self) -> None:  # noqa: B027 - most have them the same
        """Make the weights of all ranks the same, where ranks take steps of their own."""

    @abstractmethod
    def digest(self) -> str:
        """SHA-256 of the weights that all ranks have in common, in fp32, and of saved buffers.

        It also differs where a rank's model does not run on these weights.
        """

    @abstractmethod
    def gradients_digest(self) -> str:
        """A hash of the summed gradients of the last step."""

    @abstractmethod
    def state(self) -> State | None:
        """All tensors that the next steps depend on, not copied; None where that is not known."""

    def state_loaded(self, step: int) -> None:  # noqa: B027 - not called without a state
        """Go on from other values of the tensors of `state`, those after `step`."""

    @abstractmethod
    def detach(self, wanted: bool = True) -> PreTrainedModel:
        """The model in fp32, with tensors of its own, as `from_pretrained` would load it.

        Args:
            wanted: False where this rank has no use for it and its weights may be any.
        """

    def attach(self) -> None:  # noqa: B027 - where `detach` makes a copy
        """Undo `detach`, to go on training."""
