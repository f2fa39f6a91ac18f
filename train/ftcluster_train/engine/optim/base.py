"""What the training loop needs of an optimizer."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from transformers import PreTrainedModel

from ftcluster_train.comm.traffic import Traffic
from ftcluster_train.engine.optim.flat_params import PendingGathers
from ftcluster_train.engine.optim.state import State


class OptimizerStep(ABC):
    """From the loss of a batch to the next weights; every rank calls each method.

    Attributes:
        adamw: torch's optimizer, for the learning rate schedule.
        control_flags: shape (CONTROL_FLAGS,), numbers that `step` sums over the ranks; set them
            before the backward pass.
        traffic: what this rank has sent and waited for.
        pending_gathers: weights that the model may not read yet after a step.
    """

    adamw: torch.optim.Optimizer
    control_flags: torch.Tensor
    traffic: Traffic
    pending_gathers: PendingGathers

    def start_batch(self, by_rank: Sequence[int]) -> None:  # noqa: B027 - most sum over all ranks
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
