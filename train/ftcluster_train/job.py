"""The job as the control node wrote it: job.json in the run's folder."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class TextClassification:
    """Fields of the task text-classification; see the control node's ftcluster.recipe.tasks."""

    text_columns: tuple[str, ...]
    label_column: str
    glue_task: str | None
    regression: bool
    metrics: tuple[str, ...] | None
    validation_splits: tuple[str, ...]
    max_length: int


@dataclass(frozen=True)
class QuestionAnswering:
    """Fields of the task question-answering; see the control node's ftcluster.recipe.tasks."""

    question_column: str
    context_column: str
    answers_column: str
    max_length: int
    doc_stride: int
    max_query_length: int
    n_best_size: int
    max_answer_length: int
    version_2_with_negative: bool
    null_score_diff_threshold: float


@dataclass(frozen=True)
class CausalLm:
    """Fields of the task causal-lm; see the control node's ftcluster.recipe.tasks."""

    text_column: str
    block_size: int
    validation_split_percentage: float
    vocab_size: int | None


Options = TextClassification | QuestionAnswering | CausalLm
TASKS: dict[str, type[Options]] = {
    "text-classification": TextClassification,
    "question-answering": QuestionAnswering,
    "causal-lm": CausalLm,
}


@dataclass(frozen=True)
class Training:
    """Section `training` of a recipe; see ftcluster.recipe.training_arguments."""

    learning_rate: float
    lr_scheduler_type: str
    lr_scheduler_kwargs: dict[str, Any]
    warmup_ratio: float
    warmup_steps: float
    num_train_epochs: float
    max_steps: int
    gradient_accumulation_steps: int
    optim: str
    weight_decay: float
    adam_beta1: float
    adam_beta2: float
    adam_epsilon: float
    max_grad_norm: float
    label_smoothing_factor: float
    logging_strategy: str
    logging_steps: float
    logging_first_step: bool
    eval_strategy: str
    eval_steps: float | None
    eval_on_start: bool
    save_strategy: str
    save_steps: float
    save_total_limit: int | None
    load_best_model_at_end: bool
    metric_for_best_model: str | None
    greater_is_better: bool | None
    seed: int
    data_seed: int | None
    full_determinism: bool
    group_by_length: bool
    dataloader_drop_last: bool
    gradient_checkpointing: bool
    report_to: str | tuple[str, ...]
    run_name: str | None
    use_ipex: bool | str
    ddp_backend: str


@dataclass(frozen=True)
class Recipe:
    """What to train; the control node has checked it, see its ftcluster.recipe.recipe."""

    name: str
    task: str
    model: str
    from_scratch: bool
    config_overrides: dict[str, Any]
    tokenizer: str | None
    data: str
    data_config: str | None
    options: Options
    batch_size: int
    ranks_per_host: int | None
    precision: str
    attention_dropout: bool
    training: Training


@dataclass(frozen=True)
class Job:
    """One run.

    Attributes:
        run: its id.
        run_dir: its folder on this host.
        prefix: the cluster's folder on this host.
        recipe: what to train.
        precision: bf16 or fp32, as the plan decided.
        ipex: whether IPEX optimizes the model, as the plan decided.
    """

    run: str
    run_dir: Path
    prefix: Path
    recipe: Recipe
    precision: str
    ipex: bool


def read_job(run_dir: Path) -> Job:
    """Read `run_dir`/job.json."""
    data: dict[str, Any] = json.loads((run_dir / "job.json").read_text(encoding="utf-8"))
    recipe = dict(data["recipe"])
    recipe["training"] = Training(**_with_tuples(recipe["training"]))
    recipe["options"] = TASKS[recipe["task"]](**_with_tuples(recipe["options"]))
    return Job(
        run=data["run"],
        run_dir=run_dir,
        prefix=Path(data["prefix"]),
        recipe=Recipe(**recipe),
        precision=data["precision"],
        ipex=data["ipex"],
    )


def _with_tuples(values: dict[str, Any]) -> dict[str, Any]:
    """JSON has lists only."""
    return {
        key: tuple(value) if isinstance(value, list) else value for key, value in values.items()
    }


@dataclass(frozen=True)
class Inputs:
    """What `prepare` leaves for the ranks of a host, as RUN_DIR/inputs.json.

    Attributes:
        model: a folder for `from_pretrained`, or `config:TYPE`.
        tokenizer: a folder for `from_pretrained`.
        samples: the folder with a folder of token samples for each split.
        notices: what a user should know of them: what was cut or left out.
    """

    model: str
    tokenizer: str
    samples: str
    notices: list[str]


def write_inputs(run_dir: Path, inputs: Inputs) -> None:
    """Write `run_dir`/inputs.json."""
    text = json.dumps(asdict(inputs)) + "\n"
    (run_dir / "inputs.json").write_text(text, encoding="utf-8")


def read_inputs(run_dir: Path) -> Inputs:
    """Read what `write_inputs` has written."""
    return Inputs(**json.loads((run_dir / "inputs.json").read_text(encoding="utf-8")))
