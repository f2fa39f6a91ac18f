"""Choose the optimizer step and the learning rate schedule of a run."""

import inspect
import math
import warnings
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from transformers import PreTrainedModel, get_scheduler
from transformers import __version__ as transformers_version
from transformers.optimization import TYPE_TO_SCHEDULER_FUNCTION

from ftcluster_common.protocol.job import Job
from ftcluster_common.recipe import Training
from ftcluster_train.engine.optim.base import OptimizerStep
from ftcluster_train.engine.optim.flat_params import split_by_decay
from ftcluster_train.engine.optim.flat_step import (
    FlatOptimizerStep,
    LocalOptimizerStep,
    adamw_arguments,
)
from ftcluster_train.engine.optim.ipex import IpexOptimizerStep
from ftcluster_train.engine.optim.sharded_step import ShardedOptimizerStep
from ftcluster_train.engine.train_state import warmup_steps
from ftcluster_train.errors import TrainError

# arguments of transformers' schedules that this module sets, so recipes must not set them
GIVEN = {"optimizer", "num_warmup_steps", "num_training_steps", "last_epoch"}
WATCH_A_METRIC = {"reduce_lr_on_plateau", "greedy"}  # not supported, because they need a metric


def make_optimizer_step(
    job: Job, model: PreTrainedModel, world_size: int, bf16_weights: bool = True
) -> OptimizerStep:
    """Return the optimizer step for a job and its recipe.

    Args:
        model: model in fp32; it is changed in place.
        bf16_weights: False to keep the model's weights in fp32 even if training uses bf16.

    Raises:
        TrainError: the job requests IPEX, but IPEX cannot be loaded.
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


def make_schedule(optimizer: Optimizer, training: Training, steps: int) -> LRScheduler:
    """Return the learning rate schedule of the recipe's `training`.

    Args:
        steps: total number of optimizer steps.

    Raises:
        TrainError: the installed transformers has no such schedule, or lr_scheduler_kwargs does not
            fit the schedule.
    """
    kind, extra = training.lr_scheduler_type, dict(training.lr_scheduler_kwargs)
    warmup = warmup_steps(training, steps)
    _check_names(kind, extra)
    try:
        schedule = get_scheduler(
            kind,
            optimizer,
            num_warmup_steps=warmup,
            num_training_steps=steps,
            scheduler_specific_kwargs=extra,
        )
        # call the schedule now, because some wrong arguments would fail only at a later step
        for multiplier in schedule.lr_lambdas:
            for step in (0, warmup, warmup + 1, steps // 2, steps):
                float(multiplier(step))
    except (ArithmeticError, TypeError, ValueError) as error:
        pairs = ", ".join(f"{name}={value}" for name, value in extra.items())
        with_extra = f", with {pairs}" if pairs else ""
        raise TrainError(
            f"the schedule {kind} cannot be created for {steps} steps, {warmup} of them warm-up"
            f"{with_extra}: {error}",
            "change training.lr_scheduler_kwargs or the warm-up",
        ) from error
    return schedule


def set_step(schedule: LRScheduler, step: int) -> None:
    """Set a schedule to step number `step`.

    This works because the learning rate of a schedule depends only on the step number.
    """
    schedule.last_epoch = step - 1
    with warnings.catch_warnings():  # torch warns if the optimizer has not taken a step yet
        warnings.simplefilter("ignore")
        schedule.step()


def _check_names(kind: str, extra: dict[str, Any]) -> None:
    """Check that a schedule exists, and that `extra` has its required and only valid arguments."""
    schedules = {
        str(name.value): function
        for name, function in TYPE_TO_SCHEDULER_FUNCTION.items()
        if name.value not in WATCH_A_METRIC
    }
    if kind not in schedules:
        raise TrainError(
            f"transformers {transformers_version} has no schedule {kind}; it has "
            f"{', '.join(schedules)}",
            "use another schedule: training.lr_scheduler_type=NAME; or set up a newer stack: "
            "ftcluster stacks",
        )
    parameters = inspect.signature(schedules[kind]).parameters
    allowed = [name for name in parameters if name not in GIVEN]
    required = {name for name in allowed if parameters[name].default is inspect.Parameter.empty}
    wrong = sorted(extra.keys() - set(allowed)) or sorted(required - extra.keys())
    if wrong:
        verb, action = ("does not accept", "remove") if wrong[0] in extra else ("needs", "add")
        names = ", ".join(wrong)
        raise TrainError(
            f"the schedule {kind} {verb} {names}; it accepts {', '.join(allowed) or 'nothing'}",
            f"{action} {names} in training.lr_scheduler_kwargs",
        )
