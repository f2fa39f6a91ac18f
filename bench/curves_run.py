"""One training of bench/curves, in a separate process with the Python of a host's stack.

    PYTHON -m bench.curves_run RUN_DIR OPTIONS

RUN_DIR has the job.json of a run; its tokenizer and the tokens of its data are made there once.
OPTIONS is a JSON object with `way` (see bench.curves.WAYS) and `seed`. Prints one JSON object.
"""

import json
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast, get_scheduler
from transformers.utils import logging

from ftcluster_common.protocol.job import Job, read_job
from ftcluster_train.comm.world import World
from ftcluster_train.engine.data.run_inputs import read_inputs, write_inputs
from ftcluster_train.engine.data.sampler import BatchSampler
from ftcluster_train.engine.data.token_samples import Samples
from ftcluster_train.engine.loop import train
from ftcluster_train.engine.models import call_model
from ftcluster_train.engine.prepare import prepare
from ftcluster_train.engine.progress import ProgressLog
from ftcluster_train.engine.rank import load
from ftcluster_train.engine.tasks.base import Task
from ftcluster_train.engine.tasks.registry import make_task
from ftcluster_train.engine.train_state import warmup_steps

LAST = 50  # number of steps whose mean is the final training loss
EVALUATED = 512  # number of samples of the validation set
EVAL_BATCH = 16
VOCABULARY = 4096
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
TEXTS = ("sentence1", "sentence2", "question", "context")
WORLD = World(rank=0, size=1, backend="gloo")


class LossLog(ProgressLog):
    """A log that keeps the loss of each step."""

    def __init__(self) -> None:
        super().__init__()
        self.losses: list[float] = []

    def write(self, event: str, **fields: Any) -> None:
        if event == "step":
            self.losses.append(fields["loss"])


def main() -> int:
    """Train once and return the exit code."""
    logging.set_verbosity_error()
    run_dir, options = Path(sys.argv[1]), json.loads(sys.argv[2])
    job = read_job(run_dir)
    if not (run_dir / "inputs.json").exists():
        make_tokenizer(job)
        write_inputs(run_dir, prepare(job))
    training = replace(
        job.recipe.training, seed=options["seed"], logging_steps=1, eval_strategy="no"
    )
    job = replace(job, recipe=replace(job.recipe, training=training))
    task, model, samples = load(job, read_inputs(run_dir))
    train_set = samples["train"]
    began = time.perf_counter()
    if options["way"] == "ours":
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        log = LossLog()
        _, model = train(job, task, model, train_set, {}, WORLD, log)
        losses = log.losses
    else:
        losses = list(train_plainly(job, task, model, train_set, options["way"] == "stock bf16"))
    seconds = time.perf_counter() - began
    task = make_task(job.recipe, task.tokenizer)  # its loss is computed from the logits
    found = {
        "train_loss": statistics.mean(losses[-LAST:]),
        "eval_loss": evaluate(task, model, samples["validation"]),
        "seconds_per_step": seconds / len(losses),
        "tokens_per_step": job.recipe.batch_size * statistics.mean(train_set.lengths("input_ids")),
        "parameters": sum(p.numel() for p in model.parameters()),
        "losses": [round(loss, 5) for loss in losses],
    }
    print(json.dumps(found))
    return 0


def train_plainly(
    job: Job, task: Task, model: Any, train_set: Samples, bf16: bool
) -> Iterator[float]:
    """Train by a plain loop of torch and transformers; yield the loss of each step.

    Batches and the loss function are the engine's.
    """
    training = job.recipe.training
    sampler = BatchSampler(train_set.lengths("input_ids"), job.recipe.batch_size, training)
    optimizer = torch.optim.AdamW(
        [
            # as in transformers, biases and norms have no weight decay
            {"params": [p for p in model.parameters() if p.ndim > 1]},
            {"params": [p for p in model.parameters() if p.ndim == 1], "weight_decay": 0.0},
        ],
        lr=training.learning_rate,
        betas=(training.adam_beta1, training.adam_beta2),
        eps=training.adam_epsilon,
        weight_decay=training.weight_decay,
    )
    schedule = get_scheduler(
        training.lr_scheduler_type,
        optimizer,
        num_warmup_steps=warmup_steps(training, sampler.steps),
        num_training_steps=sampler.steps,
        scheduler_specific_kwargs=dict(training.lr_scheduler_kwargs),
    )
    model.train()
    for indices in sampler:
        inputs, targets = task.collate([train_set[i] for i in indices])
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            outputs = call_model(model, inputs)
        loss = task.loss(outputs, targets) / len(indices)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), training.max_grad_norm)
        optimizer.step()
        schedule.step()
        yield loss.item()


@torch.inference_mode()  # type: ignore[untyped-decorator]
def evaluate(task: Task, model: Any, samples: Samples) -> float:
    """Return the mean loss of the first samples in fp32, for any training precision."""
    model.eval()
    count = min(EVALUATED, len(samples))
    total = 0.0
    for begin in range(0, count, EVAL_BATCH):
        inputs, targets = task.collate(samples[begin : min(begin + EVAL_BATCH, count)])
        total += task.loss(call_model(model, inputs), targets).item()
    return total / count


def make_tokenizer(job: Job) -> None:
    """Train a WordPiece tokenizer on the training texts, if the recipe names a folder for it."""
    folder = job.recipe.tokenizer
    if not folder or Path(folder).exists():
        return
    lines = (Path(job.recipe.data) / "train.jsonl").read_text(encoding="utf-8").splitlines()
    texts = (row[name] for row in map(json.loads, lines) for name in TEXTS if name in row)
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=VOCABULARY, special_tokens=list(SPECIAL), show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    ends = [(name, SPECIAL.index(name)) for name in ("[SEP]", "[CLS]")]
    tokenizer.post_processor = processors.BertProcessing(*ends)
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    ).save_pretrained(folder)


if __name__ == "__main__":
    sys.exit(main())
