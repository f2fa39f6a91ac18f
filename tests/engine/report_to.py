"""Logs to TensorBoard and trackio, through a recipe and through transformers' Trainer.

PYTHON -m tests.engine.report_to FOLDER
"""

import os
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import Trainer, TrainingArguments

from ftcluster_common.recipe import Training
from ftcluster_train.engine.trackers import make_trackers
from tests.engine.models import make_model

BOTH = ("tensorboard", "trackio")


def ours(folder: Path) -> None:
    trackers = make_trackers(Training(report_to=BOTH), folder, "run-1", sys.exit)
    for step in (1, 2):
        trackers.log(step, {"loss": 1 / step, "epoch": step / 2})
    trackers.log(2, {"eval_f1": 0.5})
    trackers.close()


def trainers(folder: Path) -> None:
    rows: Any = [{"input_ids": torch.arange(8), "labels": torch.arange(8)}] * 4
    arguments = TrainingArguments(
        str(folder), report_to=list(BOTH), run_name="run-2", use_cpu=True, max_steps=2,
        logging_steps=1, save_strategy="no", disable_tqdm=True, per_device_train_batch_size=2,
    )  # fmt: skip
    Trainer(make_model("gpt2", "causal-lm"), arguments, train_dataset=rows).train()


if __name__ == "__main__":
    where = Path(sys.argv[1])
    os.environ["TENSORBOARD_LOGGING_DIR"] = str(where / "trainer")  # used by transformers 5
    ours(where)
    trainers(where)
