"""From the loss of a batch to the next weights: backward pass, all-reduce, clipping, AdamW."""

import math
from typing import Protocol

import torch
from transformers import PreTrainedModel

from ftcluster_common.job import Job
from ftcluster_train.comm.traffic import Traffic
from ftcluster_train.engine.optim.adamw import adamw_arguments
from ftcluster_train.engine.optim.flat_params import PendingGathers, split_by_decay
from ftcluster_train.engine.optim.flat_step import FlatOptimizerStep
from ftcluster_train.engine.optim.ipex import IpexOptimizerStep
from ftcluster_train.engine.optim.local_step import LocalOptimizerStep
from ftcluster_train.engine.optim.sharded_step import ShardedOptimizerStep
from ftcluster_train.engine.optim.state import State


class OptimizerStep(Protocol):
    """What the training loop needs of an optimizer; every rank calls each method.

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

    def backward(self, loss: torch.Tensor, last: bool) -> None:
        """Add the gradients of a micro-batch; with the last one of a step they are all-reduced."""

    def step(self) -> float:
        """Clip the gradients and update the weights; returns the norm before clipping.

        A norm that is not finite leaves the weights as they are.
        """

    def synchronize(self) -> None:
        """Make the weights of all ranks the same, where ranks take steps of their own."""

    def digest(self) -> str:
        """SHA-256 of the weights that all ranks have in common, in fp32, and of saved buffers.

        It also differs where a rank's model does not run on these weights.
        """

    def gradients_digest(self) -> str:
        """A hash of the summed gradients of the last step."""

    def state(self) -> State | None:
        """All tensors that the next steps depend on, not copied; None where that is not known."""

    def state_loaded(self, step: int) -> None:
        """Go on from other values of the tensors of `state`, those after `step`."""

    def detach(self, wanted: bool = True) -> PreTrainedModel:
        """The model in fp32, with tensors of its own, as `from_pretrained` would load it.

        Args:
            wanted: False where this rank has no use for it and its weights may be any.
        """

    def attach(self) -> None:
        """Undo `detach`, to go on training."""


def make_optimizer_step(
    job: Job, model: PreTrainedModel, world_size: int, bf16_weights: bool = True
) -> OptimizerStep:
    """The optimizer step of a run.

    Args:
        model: in fp32; it is changed in place.
        bf16_weights: False keeps the model's weights in fp32 also in bf16 training.

    Raises:
        TrainError: the job asks for IPEX, which cannot be loaded.
    """
    training, bf16 = job.recipe.training, job.precision == "bf16"
    if job.ipex:
        decayed, others = split_by_decay(model)
        groups = [
            {"params": decayed, "weight_decay": training.weight_decay},
            {"params": others, "weight_decay": 0.0},
        ]
        adamw = torch.optim.AdamW(groups, **adamw_arguments(training))
        return IpexOptimizerStep(model, adamw, training, bf16, world_size)
    dtype = torch.bfloat16 if bf16 and bf16_weights else torch.float32
    if training.sync == "local" and world_size > 1:
        return LocalOptimizerStep(model, training, dtype)
    if job.shard_optimizer:
        samples = math.ceil(job.recipe.batch_size / world_size)
        rounds = min(training.gradient_accumulation_steps, samples)
        return ShardedOptimizerStep(model, training, dtype, rounds)
    return FlatOptimizerStep(model, training, dtype, world_size)
