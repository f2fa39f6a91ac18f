"""One training of bench/engine, in a process of its own with the python of a host's stack.

    PYTHON -m bench.engine_run RUN_DIR OPTIONS

RUN_DIR has the job.json of a run; the tokens of its data are made there once. OPTIONS is a JSON
object: `engine` (`ours` or `stock`), `leave_out` (optimizations that ours goes without), `seed` and
`attention_dropout` (of the recipe), `pad` (`max` or `longest`, of stock), `evaluate`, `profile`;
or `shapes` of matrix products, and their `precision`, to measure instead of a training. Prints one
JSON object.
"""

import json
import resource
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.profiler import profile, schedule
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.utils import logging

from ftcluster_common.job import Job, read_job
from ftcluster_common.recipe import CausalLm
from ftcluster_train.comm.world import World
from ftcluster_train.engine.data.sampler import BatchSampler
from ftcluster_train.engine.data.token_store import Samples, read_inputs, write_inputs
from ftcluster_train.engine.evaluation import evaluate
from ftcluster_train.engine.loop import train
from ftcluster_train.engine.prepare import prepare
from ftcluster_train.engine.progress import ProgressLog
from ftcluster_train.engine.rank import load
from ftcluster_train.engine.tasks.base import Task
from ftcluster_train.health.host_benchmark import product_shapes, weights_of
from ftcluster_train.patching.patch_model import Optimizations

TURNS = 7
WARM_UP = 3  # steps that are not counted: their memory is new, and the kernel clears it
PROFILED = 4  # steps after them
PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm_", "mkldnn::_linear_pointwise")
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
WORLD = World(rank=0, size=1, backend="gloo")


class Clock(ProgressLog, TrainerCallback):
    """Records when each step ends, of the engine or of Trainer."""

    def __init__(self, profiler: profile | None) -> None:
        super().__init__()
        self.times: list[float] = []
        self.losses: list[float] = []
        self._profiler = profiler

    def write(self, event: str, **fields: Any) -> None:
        """Called by the engine."""
        if event == "step":
            self.losses.append(fields["loss"])
            self.on_step_end()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """Called by Trainer."""
        self.times.append(time.perf_counter())
        if self._profiler:
            self._profiler.step()


def main() -> int:
    """Train once; returns the exit code."""
    logging.set_verbosity_error()
    run_dir, options = Path(sys.argv[1]), json.loads(sys.argv[2])
    if "shapes" in options:
        dtype = DTYPES[options["precision"]]
        print(json.dumps({"operations_per_second": products(options["shapes"], dtype)}))
        return 0
    job = read_job(run_dir)
    if not (run_dir / "inputs.json").exists():
        write_inputs(run_dir, prepare(job))
    training = replace(
        job.recipe.training, seed=options.get("seed", 1), max_steps=options.get("steps", -1)
    )
    recipe = replace(
        job.recipe, training=training, attention_dropout=options.get("attention_dropout", True)
    )
    job = replace(job, recipe=recipe)
    task, model, samples = load(job, read_inputs(run_dir))
    train_set = samples.pop("train")
    flop_per_token = 6 * weights_of(product_shapes(model))
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    losses: list[float] = []
    if options["engine"] == "stock":
        times = _stock(job, task, model, train_set, options)
    else:
        times, losses, model = _ours(job, task, model, train_set, options)
    counted = times[WARM_UP - 1 :]
    lengths = train_set.lengths("input_ids")
    speed = recipe.batch_size * (len(counted) - 1) / (counted[-1] - counted[0])
    if options["engine"] == "ours":
        speed *= length_share(job, lengths, "group_by_length" not in options.get("leave_out", ()))
    found: dict[str, Any] = {
        "flop_per_sample": flop_per_token * sum(lengths) / len(lengths),
        "samples_per_second": speed,
        "losses": losses[-1:],
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }
    if options.get("evaluate"):
        found["metrics"] = evaluate(task, model, samples, WORLD, job.precision == "bf16")
    if options.get("profile"):
        found["profile"] = options["profile_found"]
    print(json.dumps(found))
    return 0


def length_share(job: Job, lengths: list[int], group_by_length: bool) -> float:
    """Padded tokens of a step that is counted, divided by those of an epoch's mean step.

    The few steps of a run meet longer or shorter batches than the epoch has.
    """
    sampler = BatchSampler(lengths, job.recipe.batch_size, job.recipe.training, group_by_length)
    counted = list(sampler)[WARM_UP:]
    training = replace(job.recipe.training, max_steps=sampler.steps_per_epoch)
    epoch = list(BatchSampler(lengths, job.recipe.batch_size, training, group_by_length))

    def tokens(batches: list[list[int]]) -> float:
        return statistics.mean(len(batch) * lengths[batch[0]] for batch in batches)

    return tokens(counted) / tokens(epoch)


def products(shapes: list[tuple[int, int, int]], dtype: torch.dtype) -> float:
    """Operations per second of matrix products of these shapes, forward only."""
    seconds = work = 0.0
    for rows, inner, columns in shapes:
        left = torch.randn(rows, inner, dtype=dtype)
        right = torch.randn(columns, inner, dtype=dtype)
        taken = []
        for _ in range(2 + TURNS):
            began = time.perf_counter()
            torch.nn.functional.linear(left, right)
            taken.append(time.perf_counter() - began)
        seconds += statistics.median(taken[2:])
        work += 2.0 * rows * inner * columns
    return work / seconds


def _ours(
    job: Job, task: Task, model: Any, train_set: Samples, options: dict[str, Any]
) -> tuple[list[float], list[float], Any]:
    optimizations = Optimizations(**dict.fromkeys(options.get("leave_out", ()), False))
    training = replace(job.recipe.training, logging_steps=1, eval_strategy="no")
    job = replace(job, recipe=replace(job.recipe, training=training))
    with _profiler(options) as profiler:
        clock = Clock(profiler)
        _, trained = train(job, task, model, train_set, {}, WORLD, clock, optimizations)
    return clock.times, clock.losses, trained


def _stock(
    job: Job, task: Task, model: Any, train_set: Samples, options: dict[str, Any]
) -> list[float]:
    """transformers' Trainer with what run_glue, run_qa and run_clm leave at its defaults."""
    training, recipe = job.recipe.training, job.recipe
    arguments = TrainingArguments(
        output_dir=str(job.run_dir / "stock"),
        per_device_train_batch_size=recipe.batch_size,
        learning_rate=training.learning_rate,
        num_train_epochs=training.num_train_epochs,
        max_steps=training.max_steps,
        warmup_steps=training.warmup_steps or training.warmup_ratio,
        weight_decay=training.weight_decay,
        seed=training.seed,
        bf16=job.precision == "bf16",
        use_cpu=True,
        report_to="none",
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        remove_unused_columns=False,
    )
    longest = task.options.max_length if not isinstance(task.options, CausalLm) else 0  # type: ignore[attr-defined]

    def collate(rows: list[dict[str, Any]]) -> dict[str, Any]:
        inputs, targets = task.collate(rows)
        names = {"start": "start_positions", "end": "end_positions", "labels": "labels"}
        labels = {names[name]: values for name, values in targets.items() if name in names}
        if isinstance(task.options, CausalLm):  # type: ignore[attr-defined]
            labels = {"labels": targets["tokens"]}
        elif options.get("pad", "max") == "max":
            short = longest - inputs["input_ids"].shape[1]
            inputs = {
                name: torch.nn.functional.pad(values, (0, short)) for name, values in inputs.items()
            }
        return {**inputs, **labels}

    with _profiler(options) as profiler:
        clock = Clock(profiler)
        trainer = Trainer(
            model,
            arguments,
            train_dataset=train_set,
            data_collator=collate,
            callbacks=[clock],
        )
        trainer.train()
    return clock.times


@contextmanager
def _profiler(options: dict[str, Any]) -> Iterator[profile | None]:
    """Profile the steps after the warm-up, if asked to; `profile_found` of `options` has them."""
    if not options.get("profile"):
        yield None
        return
    plan = schedule(wait=WARM_UP - 1, warmup=1, active=PROFILED, repeat=1)
    with profile(schedule=plan) as profiler:
        yield profiler
    options["profile_found"] = _profile_of_step(profiler)


def _profile_of_step(profiler: profile) -> dict[str, float]:
    """Milliseconds of a step by kind of work, and of the slowest kernels."""
    ops = [op for op in profiler.key_averages() if not op.key.startswith("ProfilerStep")]

    def milliseconds(*names: str) -> float:
        chosen = [op for op in ops if not names or op.key in names]
        return float(sum(op.self_cpu_time_total for op in chosen)) / 1e3 / PROFILED

    largest = sorted(ops, key=lambda op: -op.self_cpu_time_total)[:16]
    return {
        "all": milliseconds(),
        "products": milliseconds(*PRODUCTS),
        "serial random numbers": milliseconds("aten::bernoulli_"),
        **{op.key: milliseconds(op.key) for op in largest},
    }


if __name__ == "__main__":
    sys.exit(main())
