"""The job as the control node wrote it: job.json in the run's folder."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Training:
    """Section `training` of a recipe; names as in transformers' TrainingArguments."""

    learning_rate: float
    num_train_epochs: float
    max_steps: int
    weight_decay: float
    warmup_ratio: float
    max_grad_norm: float
    logging_steps: int
    seed: int
    use_ipex: bool | str
    ddp_backend: str


@dataclass(frozen=True)
class Recipe:
    """What to train; the control node has checked it."""

    name: str
    task: str
    model: str
    data: str
    data_config: str | None
    text_columns: tuple[str, ...]
    label_column: str
    max_length: int
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
    recipe["text_columns"] = tuple(recipe["text_columns"])
    return Job(
        run=data["run"],
        run_dir=run_dir,
        prefix=Path(data["prefix"]),
        recipe=Recipe(**recipe),
        precision=data["precision"],
        ipex=data["ipex"],
    )
