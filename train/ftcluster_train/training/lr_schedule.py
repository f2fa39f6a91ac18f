"""The learning rate from step to step, as transformers has it."""

import inspect
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from transformers import __version__ as transformers_version
from transformers import get_scheduler
from transformers.optimization import TYPE_TO_SCHEDULER_FUNCTION

from ftcluster_common.recipe import Training
from ftcluster_train.errors import TrainError
from ftcluster_train.training.intervals import warmup_steps

# what every schedule is told without the recipe's saying it
GIVEN = {"optimizer", "num_warmup_steps", "num_training_steps", "last_epoch"}
WATCH_A_METRIC = {"reduce_lr_on_plateau", "greedy"}  # the loop tells a schedule none


def make_schedule(optimizer: Optimizer, training: Training, steps: int) -> LRScheduler:
    """The schedule of `training` over `steps` optimizer steps; `step()` follows each of them.

    Raises:
        TrainError: this transformers has no such schedule, or lr_scheduler_kwargs are not what it
            takes; says what it does take.
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
        # it is asked for later steps only when they come, which is late for a mistake
        for multiplier in schedule.lr_lambdas:
            for step in (0, warmup, warmup + 1, steps // 2, steps):
                float(multiplier(step))
    except (ArithmeticError, TypeError, ValueError) as error:
        raise TrainError(
            f"the schedule {kind} cannot be made for {steps} steps, {warmup} of them warm-up"
            f"{_in_words(extra)}: {error}",
            "change training.lr_scheduler_kwargs or the warm-up",
        ) from error
    return schedule


def _check_names(kind: str, extra: dict[str, Any]) -> None:
    """Make sure that the schedule is there and takes these keywords, and that none is missing.

    Raises:
        TrainError: otherwise; names what there is.
    """
    known = {
        str(one.value): function
        for one, function in TYPE_TO_SCHEDULER_FUNCTION.items()
        if one.value not in WATCH_A_METRIC
    }
    if kind not in known:
        raise TrainError(
            f"transformers {transformers_version} has no schedule {kind}; it has "
            f"{', '.join(known)}",
            "write another one: training.lr_scheduler_type=NAME; or set up a newer stack: "
            "ftcluster stacks",
        )
    parameters = inspect.signature(known[kind]).parameters
    allowed = [name for name in parameters if name not in GIVEN]
    unknown = [name for name in extra if name not in allowed]
    missing = [
        name
        for name in allowed
        if parameters[name].default is inspect.Parameter.empty and name not in extra
    ]
    what = f"it takes {', '.join(allowed) or 'none'}"
    if unknown:
        raise TrainError(
            f"the schedule {kind} has no {', '.join(unknown)}; {what}",
            f"take {', '.join(unknown)} out of training.lr_scheduler_kwargs",
        )
    if missing:
        raise TrainError(
            f"the schedule {kind} needs {', '.join(missing)}; {what}",
            f"write it in the recipe: training.lr_scheduler_kwargs={{{missing[0]}: N}}",
        )


def _in_words(extra: dict[str, Any]) -> str:
    pairs = ", ".join(f"{name}={value}" for name, value in extra.items())
    return f", with {pairs}" if pairs else ""
