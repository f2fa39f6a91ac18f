"""One training of bench/engine, in a separate process with the Python of a host's stack.

    PYTHON -m bench.engine_run RUN_DIR OPTIONS

RUN_DIR has the job.json of a run; the tokens of its data are made there once. OPTIONS is a JSON
object: `engine` (`ours` or `stock`), `leave_out` (optimizations that ours goes without), `seed`,
`precision` and `attention_dropout` (of the job), `limit` (shapes of products that are measured
after each step, whose time is not counted), `tuned` (stock with dynamic padding and batches grouped
by length; `random`: padded so, in any order), `steps` (default: the recipe's), `evaluate`,
`profile` (instead of `steps`), `unmasked` (ours, with padding among the answers); or `shapes` of
matrices, and their `precision`, to measure instead of a training. Prints one JSON object.
"""

import json
import resource
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.profiler import profile
from transformers import (
    DataCollatorForLanguageModeling,
    DataCollatorForSeq2Seq,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    Trainer,
    TrainerCallback,
)
from transformers.utils import logging

from bench.matmul_limit import Limit, operations_of
from bench.step_profile import profiled, steps_of, turns
from ftcluster_common.protocol.job import Job, read_job
from ftcluster_common.recipe import Recipe
from ftcluster_common.tasks.lm import CausalLm, MaskedLm
from ftcluster_common.tasks.ner import TokenClassification
from ftcluster_common.tasks.seq2seq import Seq2SeqLm
from ftcluster_common.tasks.spec import Adapters
from ftcluster_train.comm.world import World
from ftcluster_train.engine.adapters import add_adapters
from ftcluster_train.engine.data.run_inputs import read_inputs, write_inputs
from ftcluster_train.engine.data.sampler import BatchSampler
from ftcluster_train.engine.data.token_samples import Samples
from ftcluster_train.engine.evaluation import evaluate
from ftcluster_train.engine.loop import train
from ftcluster_train.engine.prepare import prepare
from ftcluster_train.engine.progress import ProgressLog
from ftcluster_train.engine.rank import load
from ftcluster_train.engine.tasks.base import Task
from ftcluster_train.engine.tasks.registry import make_task
from ftcluster_train.patching.patch_model import Optimizations
from ftcluster_train.patching.unpadding import STACKS

TURNS = 7
WARM_UP = 3  # steps that are not counted, because their memory is new and the kernel clears it
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
# packages whose versions are in a result
COMPARED = ("torch", "transformers", "accelerate", "trl", "peft", "sentence-transformers")
WORLD = World(rank=0, size=1, backend="gloo")


class Clock(ProgressLog, TrainerCallback):
    """A recorder of the end of each step, of the engine or of Trainer.

    Attributes:
        times: end of each step.
        begins: beginning of each next step.
        cpu_times, cpu_begins: CPU time of this process at these moments, which other programs on
            the machine hardly change.
    """

    def __init__(self, profiler: profile | None, between: Callable[[], None] | None = None) -> None:
        super().__init__()
        self.times: list[float] = []
        self.begins: list[float] = []
        self.cpu_times: list[float] = []
        self.cpu_begins: list[float] = []
        self._profiler, self._between = profiler, between

    def write(self, event: str, **_: Any) -> None:
        """Record a step; the engine calls this method."""
        if event == "step":
            self.on_step_end()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """Record a step; Trainer calls this method."""
        self.times.append(time.perf_counter())
        self.cpu_times.append(time.process_time())
        if self._profiler:
            self._profiler.step()
        if self._between:
            self._between()
        self.begins.append(time.perf_counter())
        self.cpu_begins.append(time.process_time())


def main() -> int:
    """Train once and return the exit code."""
    logging.set_verbosity_error()
    run_dir, options = Path(sys.argv[1]), json.loads(sys.argv[2])
    if "shapes" in options:
        dtype = DTYPES[options["precision"]]
        print(
            json.dumps(
                {
                    "operations_per_second": products(options["shapes"], dtype),
                    "versions": versions() if options.get("versions") else {},
                }
            )
        )
        return 0
    job = read_job(run_dir)
    if not (run_dir / "inputs.json").exists():
        write_inputs(run_dir, prepare(job))
    training = replace(
        job.recipe.training,
        seed=options.get("seed", 1),
        max_steps=steps_of(WARM_UP)
        if options.get("profile")
        else options.get("steps", job.recipe.training.max_steps),
    )
    recipe = replace(
        job.recipe, training=training, attention_dropout=options.get("attention_dropout", True)
    )
    job = replace(job, recipe=recipe, precision=options.get("precision", job.precision))
    task, model, samples = load(job, read_inputs(run_dir))
    train_set = samples.pop("train")
    lengths = task.lengths(train_set)
    operations = operations_of(model, train_set, recipe)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    way = _stock if options["engine"] == "stock" else _ours
    if adapters := job.recipe.adapters:
        model = _with_peft(model, adapters) if way is _stock else _with_adapters(model, adapters)
    limit = Limit(options.get("limit", ()), DTYPES[job.precision])
    parts: dict[str, Any] = {}
    with profiled(WARM_UP, parts) if options.get("profile") else nullcontext() as profiler:
        clock = Clock(profiler, limit.measure if limit.factors else None)
        tokens, epoch, model = way(job, task, model, train_set, options, clock)
    met = tokens[WARM_UP : len(clock.times)]
    share = length_share(met, epoch, len(lengths), recipe.batch_size)
    seconds = counted_seconds(clock.begins, clock.times)
    found: dict[str, Any] = {
        "flop_per_sample": operations / len(lengths),
        # the batches of a few steps may be longer or shorter than the epoch's
        "samples_per_second": share * recipe.batch_size * len(met) / seconds,
        "samples_per_cpu_second": share
        * recipe.batch_size
        * len(met)
        / counted_seconds(clock.cpu_begins, clock.cpu_times),
        "length_share": share,
        "steps": len(clock.times),
        "seconds": seconds,
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }
    if limit.factors:
        found["limit"] = limit.rate(WARM_UP - 1)
    if options.get("evaluate"):
        task = make_task(job.recipe, task.tokenizer)  # its loss is computed from the logits
        found["metrics"] = evaluate(task, model, samples, WORLD, False).metrics
    if options.get("profile"):
        found["profile"] = parts | plain_step(tokens, clock)
    print(json.dumps(found))
    return 0


def counted_seconds(begins: list[float], ends: list[float]) -> float:
    """Return the time of the steps after the warm-up.

    Args:
        begins: beginning of the step after each step.
        ends: times at which steps end.
    """
    steps = zip(begins[WARM_UP - 1 :], ends[WARM_UP:], strict=False)
    return sum(end - begin for begin, end in steps)


def plain_step(tokens: Sequence[int], clock: Clock) -> dict[str, float]:
    """Return the mean tokens of the profiled steps, and the seconds without a profiler for them.

    Args:
        tokens: tokens of each step.
    """
    plain, with_profiler = zip(*turns(WARM_UP), strict=True)
    seconds = sum(clock.times[step] - clock.begins[step - 1] for step in plain)
    of_step = sum(tokens[step] for step in with_profiler) / len(with_profiler)
    of_plain = sum(tokens[step] for step in plain) / len(plain)
    return {"tokens": of_step, "plain_seconds": seconds / len(plain) / of_plain * of_step}


def versions() -> dict[str, str]:
    """Return the versions of the compared packages, as far as installed."""
    found = {}
    for name in COMPARED:
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def products(shapes: list[tuple[int, int, int]], dtype: torch.dtype) -> float:
    """Return the operations per second of matrix multiplications of these shapes, forward only."""
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


def _with_adapters(model: Any, adapters: Adapters) -> Any:
    """Add our adapters to a model."""
    add_adapters(model, adapters)
    return model


def _with_peft(model: Any, adapters: Adapters) -> Any:
    """Return a classifier with peft's adapters, of the same layers and rank."""
    import peft

    config = peft.LoraConfig(
        r=adapters.lora_r, lora_alpha=adapters.adapter_alpha, target_modules="all-linear",
        use_dora=adapters.use_dora, task_type="SEQ_CLS",
    )  # fmt: skip
    return peft.get_peft_model(model, config)


# padded tokens of the steps and of the epoch's batches; model
Trained = tuple[list[int], list[int], Any]


def _ours(
    job: Job, task: Task, model: Any, train_set: Samples, options: dict[str, Any], clock: Clock
) -> Trained:
    left_out = options.get("leave_out", ())
    if options.get("unmasked"):
        task.loss = _unmasked(task.loss)  # type: ignore[method-assign]
    training = replace(job.recipe.training, logging_steps=1, eval_strategy="no")
    recipe = replace(job.recipe, training=training)
    job, optimizations = (
        replace(job, recipe=recipe),
        Optimizations(**dict.fromkeys(left_out, False)),
    )
    _, trained = train(job, task, model, train_set, {}, WORLD, clock, optimizations)
    met, epoch = batch_tokens(
        task.lengths(train_set), recipe, optimizations.group_by_length,
        unpadded=model.config.model_type in STACKS,
    )  # fmt: skip
    return met, epoch, trained


def batch_tokens(
    lengths: list[int], recipe: Recipe, grouped: bool = True, unpadded: bool = False
) -> tuple[list[int], list[int]]:
    """Return the tokens of each of our batches, in this training and in an epoch.

    Args:
        lengths: lengths of the samples, in tokens.
        unpadded: True to exclude padding.
    """
    sampler = BatchSampler(lengths, recipe.batch_size, recipe.training, grouped)
    of_epoch = replace(recipe.training, max_steps=sampler.steps_per_epoch)
    epoch = BatchSampler(lengths, recipe.batch_size, of_epoch, grouped)

    def tokens(batch: list[int]) -> int:
        return sum(lengths[i] for i in batch) if unpadded else len(batch) * lengths[batch[0]]

    return [*map(tokens, sampler)], [*map(tokens, epoch)]


def length_share(met: list[int], epoch: list[int], samples: int, batch_size: int) -> float:
    """Return the padded tokens per sample in these batches, relative to an epoch's batches."""
    return sum(met) / (len(met) * batch_size) / (sum(epoch) / samples)


def _unmasked(loss: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Compute the loss of question answering with padding among possible answers, as in run_qa."""

    def of_all(outputs: Any, targets: dict[str, torch.Tensor]) -> torch.Tensor:
        return loss(outputs, targets | {"tokens": torch.ones_like(targets["tokens"])})

    return of_all


def _stock(
    job: Job, task: Task, model: Any, train_set: Samples, options: dict[str, Any], clock: Clock
) -> Trained:
    """Train with transformers' Trainer as configured by run_glue and others, or `tuned`."""
    training, recipe, tuned = job.recipe.training, job.recipe, options.get("tuned", False)
    arguments = Seq2SeqTrainingArguments(
        output_dir=str(job.run_dir / "stock"),
        per_device_train_batch_size=recipe.batch_size,
        gradient_accumulation_steps=training.gradient_accumulation_steps,
        learning_rate=training.learning_rate,
        lr_scheduler_type=training.lr_scheduler_type,
        lr_scheduler_kwargs=dict(training.lr_scheduler_kwargs),
        num_train_epochs=training.num_train_epochs,
        max_steps=training.max_steps,
        warmup_steps=training.warmup_steps or training.warmup_ratio,
        optim="adamw_torch_fused",
        weight_decay=training.weight_decay,
        adam_beta2=training.adam_beta2,
        max_grad_norm=training.max_grad_norm,
        seed=training.seed,
        bf16=job.precision == "bf16",
        train_sampling_strategy="group_by_length" if tuned is True else "random",
        use_cpu=True,
        report_to="none",
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        remove_unused_columns=False,
    )
    causal, writes = (isinstance(recipe.options, kind) for kind in (CausalLm, Seq2SeqLm))
    # by default, run_summarization pads to the longest sample of a batch
    plain = causal or writes or tuned
    longest = 0 if plain else recipe.options.max_length  # type: ignore[attr-defined]
    masked = None
    if isinstance(recipe.options, MaskedLm):  # the collator draws its own masks
        probability = recipe.options.mlm_probability
        masked = DataCollatorForLanguageModeling(task.tokenizer, mlm_probability=probability)
    of_pairs = DataCollatorForSeq2Seq(task.tokenizer, model)
    tokens: list[int] = []

    def collate(rows: list[dict[str, Any]]) -> dict[str, Any]:
        if masked:
            batch: dict[str, Any] = masked([{"input_ids": row["input_ids"]} for row in rows])
            tokens.append(batch["input_ids"].numel())
            return batch
        if writes:
            names = ("input_ids", "labels")
            pairs = of_pairs([{name: row[name] for name in names} for row in rows])
            tokens.append(sum(pairs[name].numel() for name in names))
            return dict(pairs)
        inputs, targets = task.collate(rows)
        names = {"start": "start_positions", "end": "end_positions", "labels": "labels"}
        labels = {names[name]: values for name, values in targets.items() if name in names}
        if causal:
            labels = {"labels": targets["tokens"]}
        short = max(0, longest - inputs["input_ids"].shape[1])
        if short:
            pad = torch.nn.functional.pad
            inputs = {name: pad(values, (0, short)) for name, values in inputs.items()}
            if isinstance(recipe.options, TokenClassification):  # a label per token
                labels = {
                    name: pad(values, (0, short), value=-100) for name, values in labels.items()
                }
        tokens.append(inputs["input_ids"].numel())
        return {**inputs, **labels}

    trainer = (Seq2SeqTrainer if writes else Trainer)(
        model, arguments, train_dataset=train_set, data_collator=collate, callbacks=[clock]
    )
    trainer.train()
    lengths = task.lengths(train_set)
    order, size = [lengths[index] for index in trainer._get_train_sampler()], recipe.batch_size
    batches = [order[begin : begin + size] for begin in range(0, len(order), size)]
    epoch = [len(batch) * (longest or max(batch)) for batch in batches]
    return tokens, epoch, model


if __name__ == "__main__":
    sys.exit(main())
