"""The job as the control node wrote it: job.json in the run's folder."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class TextClassification:
    """Fields of the task text-classification; see the control node's ftcluster.tasks."""

    text_columns: tuple[str, ...]
    label_column: str
    glue_task: str | None
    regression: bool
    metrics: tuple[str, ...] | None
    validation_splits: tuple[str, ...]
    max_length: int


@dataclass(frozen=True)
class QuestionAnswering:
    """Fields of the task question-answering; see the control node's ftcluster.tasks."""

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
    """Fields of the task causal-lm; see the control node's ftcluster.tasks."""

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
    """Section `training` of a recipe; names as in transformers' TrainingArguments."""

    learning_rate: float
    num_train_epochs: float
    max_steps: int
    gradient_accumulation_steps: int
    weight_decay: float
    warmup_ratio: float
    max_grad_norm: float
    logging_steps: int
    seed: int
    use_ipex: bool | str
    ddp_backend: str


@dataclass(frozen=True)
class Recipe:
    """What to train; the control node has checked it, see its ftcluster.recipe."""

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
    recipe["training"] = Training(**recipe["training"])
    options: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in recipe["options"].items()
    }
    recipe["options"] = TASKS[recipe["task"]](**options)
    return Job(
        run=data["run"],
        run_dir=run_dir,
        prefix=Path(data["prefix"]),
        recipe=Recipe(**recipe),
        precision=data["precision"],
        ipex=data["ipex"],
    )


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
