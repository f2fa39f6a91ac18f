"""Chooses the optimizer step of a run."""

import math

import torch
from transformers import PreTrainedModel

from ftcluster_common.job import Job
from ftcluster_train.engine.optim.adamw import adamw_arguments
from ftcluster_train.engine.optim.base import OptimizerStep
from ftcluster_train.engine.optim.flat_params import split_by_decay
from ftcluster_train.engine.optim.flat_step import FlatOptimizerStep
from ftcluster_train.engine.optim.ipex import IpexOptimizerStep
from ftcluster_train.engine.optim.local_step import LocalOptimizerStep
from ftcluster_train.engine.optim.sharded_step import ShardedOptimizerStep


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
