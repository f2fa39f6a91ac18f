"""Check the section `training:` of a recipe: contradictory fields, and alternative names.

Unsupported arguments are in `ftcluster.recipe.unsupported`.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ftcluster_common.recipe import Training
from ftcluster_common.tasks.spec import Contradiction

NAMED = ("trackio", "mlflow", "wandb")  # trackers in report_to that give names to runs
# binary floating-point numbers only approximate decimal fractions
SHARE_TOLERANCE = 1e-6
LESS_IS_BETTER = {"perplexity", "ece"}  # words in names of metrics where less is better, as in loss


def contradictions(training: Training, given: Collection[str]) -> Iterator[Contradiction]:
    """Yield fields of `training` that are valid individually, but not together.

    Args:
        given: names of the fields that the recipe sets. Contradictions between defaults are not
            reported.
    """
    yield from _steps(training, given)
    yield from _saving(training, given)
    yield from _best(training, given)
    if training.max_steps == 0 or training.max_steps < -1:
        yield (
            "max_steps",
            "max_steps must be at least 1, or -1 to train for num_train_epochs, got "
            f"{training.max_steps}",
        )
    if training.warmup_ratio and training.warmup_steps:
        yield (
            "warmup_steps",
            f"warmup_steps and warmup_ratio ({training.warmup_ratio:g}) both set the warm-up: "
            "set only one of them, or set the other to 0",
        )
    if "run_name" in given and not any(name in training.report_to for name in NAMED):
        yield "run_name", "run_name needs a tracker that gives names to runs: report_to: trackio"


def _steps(training: Training, given: Collection[str]) -> Iterator[Contradiction]:
    for name in ("warmup_steps", "logging_steps", "eval_steps", "save_steps"):
        value = getattr(training, name)
        if value is not None and value > 1 and value != int(value):
            yield name, f"{name} must be a whole number of steps or a share below 1, got {value:g}"
    for name in ("eval_steps", "save_steps"):
        strategy = name.replace("_steps", "_strategy")
        chosen = getattr(training, strategy)
        if name in given and chosen != "steps":
            yield (
                name,
                f"{name} needs {strategy}: steps, but {strategy} is {chosen}; set {strategy} to "
                f"steps, or remove {name} (or set it to null)",
            )


def _saving(training: Training, given: Collection[str]) -> Iterator[Contradiction]:
    save, evaluate = training.save_strategy, training.eval_strategy
    if training.resume_from_checkpoint is True:
        yield (
            "resume_from_checkpoint",
            "resume_from_checkpoint must be the folder of a checkpoint, because a new run has no "
            "last checkpoint; to continue another run from its newest checkpoint: ftcluster train "
            "--resume RUN",
        )
    if "save_total_limit" in given and save == "no":
        yield (
            "save_total_limit",
            "save_total_limit has no effect, because save_strategy is no; remove it",
        )
    if evaluate == "no" and save == "best":
        yield "save_strategy", "save_strategy best needs evaluations, but eval_strategy is no"
    if not training.load_best_model_at_end or save == "best":
        return
    if evaluate == "no":
        yield (
            "load_best_model_at_end",
            "load_best_model_at_end needs evaluations, but eval_strategy is no",
        )
    elif evaluate != save:
        yield (
            "load_best_model_at_end",
            "load_best_model_at_end needs a checkpoint for each evaluation, so "
            f"save_strategy ({save}) and eval_strategy ({evaluate}) "
            "must be equal, unless save_strategy is best",
        )
    elif save == "steps":
        every = training.eval_steps or training.logging_steps
        if not _is_multiple(training.save_steps, every):
            yield (
                "save_steps" if "save_steps" in given else "load_best_model_at_end",
                f"with load_best_model_at_end, save_steps ({training.save_steps:g}) must be a "
                f"multiple of the steps between evaluations ({every:g}); both must be numbers of "
                "steps, or both must be shares of the training",
            )


def _best(training: Training, given: Collection[str]) -> Iterator[Contradiction]:
    stops = training.early_stopping_patience is not None
    if stops and training.eval_strategy == "no":
        yield (
            "early_stopping_patience",
            "early_stopping_patience needs evaluations, but eval_strategy is no",
        )
    if training.early_stopping_threshold and not stops:
        yield "early_stopping_threshold", "early_stopping_threshold needs early_stopping_patience"
    chooses = training.load_best_model_at_end or training.save_strategy == "best"
    if not chooses and not stops:
        for name in ("metric_for_best_model", "greater_is_better"):
            if name in given:
                yield (
                    name,
                    f"{name} needs load_best_model_at_end: true, save_strategy: best or "
                    "early_stopping_patience",
                )
    # in transformers, a greater value of a metric is better unless the metric's name ends in loss
    elif (
        LESS_IS_BETTER & {*(training.metric_for_best_model or "").split("_")}
        and training.greater_is_better is None
    ):
        yield (
            "metric_for_best_model",
            f"as in transformers, a greater {training.metric_for_best_model} would count as "
            "better; set greater_is_better: false",
        )


@dataclass(frozen=True)
class OtherNames:
    """Field names of transformers 5, where `Training` uses the names of transformers 4.

    Attributes:
        train_sampling_strategy: transformers 5's name for group_by_length. The value
            group_by_length means true, and random means false.
        activation_checkpointing: transformers 5's name for gradient_checkpointing.
    """

    train_sampling_strategy: Literal["group_by_length", "random"] | None = None
    activation_checkpointing: bool | None = None


_MEANS: Mapping[str, tuple[str, Mapping[Any, bool]]] = {
    "train_sampling_strategy": ("group_by_length", {"group_by_length": True, "random": False}),
    "activation_checkpointing": ("gradient_checkpointing", {True: True, False: False}),
}


def with_own_names(given: Mapping[str, Any]) -> tuple[dict[str, Any], list[Contradiction]]:
    """Replace field names of transformers 5 with the names in `Training`.

    Return the fields, and contradictions between a field's two names.

    >>> with_own_names({"train_sampling_strategy": "random"})
    ({'group_by_length': False}, [])
    """
    renamed, contradictions = dict(given), []
    for other, (name, means) in _MEANS.items():
        if other not in renamed:
            continue
        value = means[renamed.pop(other)]
        if renamed.setdefault(name, value) != value:
            contradictions.append(
                (
                    other,
                    f"{other} is another name of {name}, which has a different value; set only one "
                    "of the two",
                )
            )
    return renamed, contradictions


def _is_multiple(steps: float, every: float) -> bool:
    if (steps < 1) != (every < 1):
        return False
    times = steps / every
    return round(times) >= 1 and abs(times - round(times)) < SHARE_TOLERANCE
