"""Trains the task few-shot-classification on the rows of `bench.record_setfit`, and prints results.

    PYTHONPATH=train:common PYTHON -m bench.few_shot MODEL [SEED ...]

PYTHON is a host's Python with the stack; MODEL is the folder of an embedder.
"""

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch.distributed as dist
from transformers.utils import logging

from bench.engine_run import WORLD
from bench.few_shot_rows import ITERATIONS, rows_of
from bench.sft_run import CpuClock
from ftcluster_common.data.data_files import TRAIN
from ftcluster_common.protocol.job import Job
from ftcluster_common.recipe import Recipe, Training
from ftcluster_common.tasks.few_shot import FewShotClassification
from ftcluster_train.engine.data.run_inputs import read_inputs, write_inputs
from ftcluster_train.engine.evaluation import evaluate
from ftcluster_train.engine.loop import train
from ftcluster_train.engine.prepare import prepare
from ftcluster_train.engine.rank import load


def main(model: str, *seeds: str) -> None:
    logging.set_verbosity_error()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    for seed in map(int, seeds or ("1", "2", "3")):
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(_run(Path(folder), model, seed)), flush=True)


def _run(folder: Path, model: str, seed: int) -> dict[str, Any]:
    data, run_dir = folder / "data", folder / "run"
    data.mkdir()
    run_dir.mkdir()
    for name, rows in zip(("train", "validation"), rows_of(seed), strict=True):
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (data / f"{name}.jsonl").write_text(lines)
    training = Training(
        seed=seed, learning_rate=2e-5, warmup_ratio=0.1, num_train_epochs=1, eval_strategy="no"
    )
    recipe = Recipe(
        name="few-shot", task="few-shot-classification", model=model, data=str(data),
        options=FewShotClassification(num_iterations=ITERATIONS), batch_size=16, precision="fp32",
        training=training,
    )  # fmt: skip
    job = Job("few-shot", run_dir, folder, recipe, "fp32", ipex=False)
    write_inputs(run_dir, prepare(job))
    task, loaded, samples = load(job, read_inputs(run_dir))
    task.check_model(loaded)
    train_set = samples.pop(TRAIN)
    before = time.perf_counter()
    _, trained = train(job, task, loaded, train_set, {}, WORLD, CpuClock(lambda: 0.0))
    seconds = time.perf_counter() - before
    scores = evaluate(task, trained, samples, WORLD, bf16=False)
    return {"seed": seed, "accuracy": scores.metrics["accuracy"], "seconds": seconds}


if __name__ == "__main__":
    main(*sys.argv[1:])
