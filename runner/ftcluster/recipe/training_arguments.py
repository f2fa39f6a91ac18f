"""The section `training:` of a recipe: those of transformers' TrainingArguments that are honoured.

Names, meanings and defaults are those of transformers 5.23; docs/recipes.md says where a default is
another one, and why. What is not honoured is in `ftcluster.recipe.unsupported`.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ftcluster.recipe.schema import limited
from ftcluster.recipe.tasks import Disagreement

Strategy = Literal["no", "steps", "epoch"]
# those of transformers that need nothing but the number of the step
Schedule = Literal[
    "linear",
    "cosine",
    "cosine_with_restarts",
    "polynomial",
    "constant",
    "constant_with_warmup",
    "inverse_sqrt",
    "cosine_with_min_lr",
    "cosine_warmup_with_min_lr",
    "warmup_stable_decay",
]
# shares are given in decimals, which binary fractions only come near to
SHARE_TOLERANCE = 1e-6


@dataclass(frozen=True)
class Training:
    """How the model is trained; the names are those of transformers' TrainingArguments.

    Numbers of steps are optimizer steps. Where a field takes steps or a share, a number below 1 is
    that share of all steps, rounded up.

    Attributes:
        learning_rate: the peak of the schedule.
        lr_scheduler_type: how the learning rate goes from step to step.
        lr_scheduler_kwargs: what that schedule takes besides, such as num_cycles; the hosts'
            transformers knows the names.
        warmup_ratio: share of the steps in which the learning rate rises from 0.
        warmup_steps: the same as a number of steps, or as a share.
        num_train_epochs: passes over the training data.
        max_steps: if positive, the number of optimizer steps instead of epochs.
        gradient_accumulation_steps: parts that the batch of an optimizer step is computed in, one
            after the other, so that only a part has to fit the memory. batch_size remains the
            whole batch: it is not multiplied by this.
        optim: AdamW, with one name or the other.
        weight_decay: AdamW's, on everything but biases and norms.
        adam_beta1: how much of its mean of the gradients AdamW keeps at a step.
        adam_beta2: the same of the mean of their squares.
        adam_epsilon: keeps AdamW from dividing by 0.
        max_grad_norm: gradients are clipped to this norm; 0 leaves them.
        label_smoothing_factor: share of a label's weight that is spread over all classes or tokens.
        logging_strategy: when progress is told; the last step is always.
        logging_steps: steps, or a share, between two progress events.
        logging_first_step: whether the first step is told as well.
        eval_strategy: when the validation set is evaluated; unless `no`, also after the last step.
        eval_steps: steps, or a share, between two evaluations; left out, logging_steps.
        eval_on_start: whether it is also evaluated before the first step.
        save_strategy: when checkpoints are saved; best, when an evaluation is the best so far. The
            model after the last step is saved whatever this says.
        save_steps: steps, or a share, between two checkpoints.
        save_total_limit: checkpoints that are kept; left out, all.
        load_best_model_at_end: whether the model of the best evaluation is the one that is left.
        metric_for_best_model: what the best evaluation is told by; left out, the loss where the
            task has it, or else the task's first metric.
        greater_is_better: whether that metric is to be large; left out, unless its name ends in
            loss.
        seed: of weights, order of the data and dropout.
        data_seed: of the order of the data; left out, `seed`.
        full_determinism: whether torch takes only algorithms that give the same result every time.
        group_by_length: whether samples of about the same length come into one batch, so that less
            is padded.
        dataloader_drop_last: whether the last batch of an epoch is left out where it is smaller.
        gradient_checkpointing: whether activations are computed twice instead of being kept.
        report_to: where losses and metrics go besides the run's own events.
        run_name: what the run is called in MLflow; left out, the run's id.
        use_ipex: whether IPEX optimizes the model; auto: where the stack has it and every CPU has
            AVX512.
        ddp_backend: what gradients are shared with; auto: what the stack prefers.
    """

    learning_rate: float = limited(5e-5, above=0)
    lr_scheduler_type: Schedule = "linear"
    lr_scheduler_kwargs: Mapping[str, Any] = field(default_factory=dict)
    warmup_ratio: float = limited(0.0, at_least=0, at_most=1)
    warmup_steps: float = limited(0.0, at_least=0)
    num_train_epochs: float = limited(3.0, above=0)
    max_steps: int = -1
    gradient_accumulation_steps: int = limited(1, at_least=1)
    optim: Literal["adamw_torch_fused", "adamw_torch"] = "adamw_torch_fused"
    weight_decay: float = limited(0.0, at_least=0)
    adam_beta1: float = limited(0.9, at_least=0, below=1)
    adam_beta2: float = limited(0.999, at_least=0, below=1)
    adam_epsilon: float = limited(1e-8, at_least=0)
    max_grad_norm: float = limited(1.0, at_least=0)
    label_smoothing_factor: float = limited(0.0, at_least=0, at_most=1)
    logging_strategy: Strategy = "steps"
    logging_steps: float = limited(10.0, above=0)
    logging_first_step: bool = False
    eval_strategy: Strategy = "epoch"
    eval_steps: float | None = limited(None, above=0)
    eval_on_start: bool = False
    save_strategy: Literal["no", "steps", "epoch", "best"] = "no"
    save_steps: float = limited(500.0, above=0)
    save_total_limit: int | None = limited(None, at_least=1)
    load_best_model_at_end: bool = False
    metric_for_best_model: str | None = None
    greater_is_better: bool | None = None
    seed: int = limited(42, at_least=0, below=1 << 32)  # numpy takes no larger one
    data_seed: int | None = limited(None, at_least=0)
    full_determinism: bool = False
    group_by_length: bool = True
    dataloader_drop_last: bool = False
    gradient_checkpointing: bool = False
    report_to: (
        Literal["none", "tensorboard", "mlflow"] | tuple[Literal["tensorboard", "mlflow"], ...]
    ) = "none"
    run_name: str | None = None
    use_ipex: Literal["auto", True, False] = "auto"
    ddp_backend: Literal["auto", "gloo", "ccl"] = "auto"

    def disagreements(self, given: Collection[str]) -> Iterator[Disagreement]:
        """What each field allows and all of them together do not.

        Args:
            given: the fields that the recipe sets; what is a default cannot be wrong by itself.
        """
        yield from self._steps(given)
        yield from self._saving(given)
        yield from self._best(given)
        if self.warmup_ratio and self.warmup_steps:
            yield (
                "warmup_steps",
                f"warmup_steps and warmup_ratio ({self.warmup_ratio:g}) say the same: set one of "
                "them, or the other one to 0",
            )
        if "run_name" in given and "mlflow" not in self.report_to:
            yield "run_name", "run_name is the name of a run in MLflow: report_to: mlflow"

    def _steps(self, given: Collection[str]) -> Iterator[Disagreement]:
        for name in ("warmup_steps", "logging_steps", "eval_steps", "save_steps"):
            value = getattr(self, name)
            if value is not None and value > 1 and value != int(value):
                yield name, f"{name} is a whole number of steps or a share below 1, not {value:g}"
        for name in ("eval_steps", "save_steps"):
            strategy = name.replace("_steps", "_strategy")
            found = getattr(self, strategy)
            if name in given and found != "steps":
                yield (
                    name,
                    f"{name} is for {strategy}: steps, and {strategy} is {found}; leave it out, "
                    "or set it to null",
                )

    def _saving(self, given: Collection[str]) -> Iterator[Disagreement]:
        if "save_total_limit" in given and self.save_strategy == "no":
            yield (
                "save_total_limit",
                "save_total_limit has no checkpoints to count: save_strategy is no",
            )
        if self.eval_strategy == "no" and self.save_strategy == "best":
            yield "save_strategy", "save_strategy best needs evaluations, and eval_strategy is no"
        if not self.load_best_model_at_end or self.save_strategy == "best":
            return
        if self.eval_strategy == "no":
            yield (
                "load_best_model_at_end",
                "load_best_model_at_end needs evaluations, and eval_strategy is no",
            )
        elif self.eval_strategy != self.save_strategy:
            yield (
                "load_best_model_at_end",
                "load_best_model_at_end needs a checkpoint of each evaluation that can be best: "
                f"save_strategy ({self.save_strategy}) and eval_strategy ({self.eval_strategy}) "
                "have to be the same, or save_strategy best",
            )
        elif self.save_strategy == "steps":
            every = self.eval_steps or self.logging_steps
            if not _is_multiple(self.save_steps, every):
                yield (
                    "save_steps" if "save_steps" in given else "load_best_model_at_end",
                    f"with load_best_model_at_end, save_steps ({self.save_steps:g}) has to be a "
                    f"multiple of the steps between evaluations ({every:g}), both of them steps "
                    "or both shares",
                )

    def _best(self, given: Collection[str]) -> Iterator[Disagreement]:
        if not self.load_best_model_at_end and self.save_strategy != "best":
            for name in ("metric_for_best_model", "greater_is_better"):
                if name in given:
                    yield (
                        name,
                        f"{name} is for load_best_model_at_end: true, or for save_strategy: best",
                    )
        # a name that does not end in loss counts as the better the greater in transformers
        elif "perplexity" in (self.metric_for_best_model or "") and self.greater_is_better is None:
            yield (
                "metric_for_best_model",
                f"of two values of {self.metric_for_best_model} the greater one would count as "
                "better, as in transformers: set greater_is_better: false",
            )


@dataclass(frozen=True)
class OtherNames:
    """What transformers 5 calls fields that `Training` has under transformers 4's names.

    Attributes:
        train_sampling_strategy: group_by_length, or random for none.
        activation_checkpointing: gradient_checkpointing.
    """

    train_sampling_strategy: Literal["group_by_length", "random"] | None = None
    activation_checkpointing: bool | None = None


_MEANS: Mapping[str, tuple[str, Mapping[Any, bool]]] = {
    "train_sampling_strategy": ("group_by_length", {"group_by_length": True, "random": False}),
    "activation_checkpointing": ("gradient_checkpointing", {True: True, False: False}),
}


def with_own_names(given: Mapping[str, Any]) -> tuple[dict[str, Any], list[Disagreement]]:
    """The fields that a recipe gives by the names of `Training`, and which names contradict.

    >>> with_own_names({"train_sampling_strategy": "random"})
    ({'group_by_length': False}, [])
    """
    found, contradictions = dict(given), []
    for other, (name, means) in _MEANS.items():
        if other not in found:
            continue
        value = means[found.pop(other)]
        if found.setdefault(name, value) != value:
            contradictions.append(
                (other, f"{name} says the opposite: both names mean the same, set one of them")
            )
    return found, contradictions


def _is_multiple(steps: float, every: float) -> bool:
    if (steps < 1) != (every < 1):
        return False
    times = steps / every
    return round(times) >= 1 and abs(times - round(times)) < SHARE_TOLERANCE
