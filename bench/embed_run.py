"""One training of bench/embed, in a separate process with the Python of a host's stack.

    PYTHON -m bench.embed_run RUN_DIR OPTIONS

RUN_DIR has the job.json of a run; the tokens of its data are made there once. OPTIONS is a JSON
object: `engine` (`ours` or `stock`), `precision`, `steps` (default: an epoch), `seed`, `evaluate`,
`profile` (of ours, instead of `steps`). Prints one JSON object.
"""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch.distributed as dist
from transformers.utils import logging

from bench.engine_run import (
    DTYPES,
    WARM_UP,
    WORLD,
    Clock,
    batch_tokens,
    counted_seconds,
    length_share,
    plain_step,
)
from bench.matmul_limit import Limit, operations_of
from bench.sft_run import shapes_of
from bench.step_profile import profiled, steps_of
from ftcluster_common.data.columns import search_texts
from ftcluster_common.data.data_files import TRAIN
from ftcluster_common.protocol.job import Job, read_job
from ftcluster_common.tasks.embed import search_columns
from ftcluster_train.engine.data.run_inputs import read_inputs, write_inputs
from ftcluster_train.engine.data.sources import columns_of, load_rows
from ftcluster_train.engine.evaluation import evaluate
from ftcluster_train.engine.loop import train
from ftcluster_train.engine.prepare import prepare
from ftcluster_train.engine.rank import load
from ftcluster_train.patching.unpadding import STACKS


def main() -> int:
    """Train once and return the exit code."""
    logging.set_verbosity_error()
    run_dir, options = Path(sys.argv[1]), json.loads(sys.argv[2])
    job = read_job(run_dir)
    if not (run_dir / "inputs.json").exists():
        write_inputs(run_dir, prepare(job))
    steps = steps_of(WARM_UP) if options.get("profile") else options.get("steps", -1)
    training = replace(
        job.recipe.training, seed=options.get("seed", 1), max_steps=steps,
        logging_steps=1, eval_strategy="no",
    )  # fmt: skip
    precision = options["precision"]
    job = replace(job, recipe=replace(job.recipe, training=training), precision=precision)
    task, model, samples = load(job, read_inputs(run_dir))
    task.check_model(model)
    train_set = samples.pop(TRAIN)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    if options.get("profile"):
        lengths, parts = task.lengths(train_set), dict[str, Any]()
        tokens, _ = batch_tokens(lengths, job.recipe, task.group_by_length, is_unpadded(model))
        with profiled(WARM_UP, parts) as profiler:
            clock = Clock(profiler)
            train(job, task, model, train_set, {}, WORLD, clock)
        print(json.dumps(parts | plain_step(tokens, clock)))
        return 0
    limit = Limit(shapes_of(model.base_model), DTYPES[job.precision])
    clock, share = Clock(None, limit.measure), 1.0
    found: dict[str, Any] = {
        "flop_per_pair": operations_of(model, train_set, job.recipe) / len(train_set),
    }
    if options["engine"] == "ours":
        lengths = task.lengths(train_set)
        grouped = task.group_by_length
        met, epoch = batch_tokens(lengths, job.recipe, grouped, is_unpadded(model))
        # the batches of a few steps may be longer or shorter than the epoch's
        share = length_share(met[WARM_UP:], epoch, len(lengths), job.recipe.batch_size)
        _, model = train(job, task, model, train_set, {}, WORLD, clock)
    else:
        model = STOCK[job.recipe.name](job, clock, precision == "bf16")
    found["length_share"] = share
    found["products"] = limit.rate(WARM_UP - 1)
    pairs = share * job.recipe.batch_size * (len(clock.times) - WARM_UP)
    for name, begins, ends in (
        ("second", clock.begins, clock.times), ("cpu_second", clock.cpu_begins, clock.cpu_times)
    ):  # fmt: skip
        found[f"pairs_per_{name}"] = pairs / counted_seconds(begins, ends)
    if options.get("evaluate"):
        found["metrics"] = evaluate(task, model, samples, WORLD, job.precision == "bf16").metrics
    print(json.dumps(found))
    return 0


def is_unpadded(model: Any) -> bool:
    """Return True if the engine computes no padding for this model."""
    return model.base_model.config.model_type in STACKS


def _stock(job: Job, clock: Clock, bf16: bool) -> Any:
    """Train with sentence-transformers; return the transformer inside its model."""
    from datasets import Dataset
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.losses import MultipleNegativesRankingLoss

    recipe = job.recipe
    options: Any = recipe.options
    rows = load_rows(recipe.data, recipe.data_config)[TRAIN]
    columns = search_columns(options, columns_of(rows))
    pairs = [search_texts(row, columns) for row in rows]
    model = SentenceTransformer(recipe.model, device="cpu")
    model.max_seq_length = options.max_length
    arguments = SentenceTransformerTrainingArguments(
        **_arguments(job, bf16), batch_sampler="no_duplicates"
    )
    trainer = SentenceTransformerTrainer(
        model=model,
        args=arguments,
        train_dataset=Dataset.from_dict(
            {"anchor": [pair[0] for pair in pairs], "positive": [pair[1] for pair in pairs]}
        ),
        loss=MultipleNegativesRankingLoss(model, scale=options.scale),
        callbacks=[clock],
    )
    trainer.train()
    return model[0].auto_model.float()


def _stock_reranker(job: Job, clock: Clock, bf16: bool) -> Any:
    """Train a cross-encoder with sentence-transformers."""
    from datasets import Dataset
    from sentence_transformers.cross_encoder import (
        CrossEncoder,
        CrossEncoderTrainer,
        CrossEncoderTrainingArguments,
    )
    from sentence_transformers.cross_encoder.losses import BinaryCrossEntropyLoss

    options: Any = job.recipe.options
    rows = load_rows(job.recipe.data, job.recipe.data_config)[TRAIN]
    columns = ("query", "text", "label")
    model = CrossEncoder(
        job.recipe.model, num_labels=1, max_length=options.max_length, device="cpu"
    )
    trainer = CrossEncoderTrainer(
        model=model,
        args=CrossEncoderTrainingArguments(**_arguments(job, bf16)),
        train_dataset=Dataset.from_dict({name: [row[name] for row in rows] for name in columns}),
        loss=BinaryCrossEntropyLoss(model),
        callbacks=[clock],
    )
    trainer.train()
    return model.model.float()


def _arguments(job: Job, bf16: bool) -> dict[str, Any]:
    """Return the arguments of both trainers."""
    training = job.recipe.training
    return {
        "output_dir": str(job.run_dir / "stock"),
        "per_device_train_batch_size": job.recipe.batch_size,
        "learning_rate": training.learning_rate,
        "num_train_epochs": training.num_train_epochs,
        "max_steps": training.max_steps,
        "warmup_steps": training.warmup_steps or training.warmup_ratio,
        "seed": training.seed,
        "bf16": bf16,
        "use_cpu": True,
        "report_to": "none",
        "save_strategy": "no",
        "logging_strategy": "no",
        "disable_tqdm": True,
    }


STOCK = {"embed": _stock, "rerank": _stock_reranker}


if __name__ == "__main__":
    sys.exit(main())
