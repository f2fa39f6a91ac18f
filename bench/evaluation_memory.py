"""The memory of a rank that trains, evaluates and saves, compared with the plan's estimate.

    PYTHONPATH=.:train:common:runner PREFIX/current/bin/python -m bench.evaluation_memory
        [--width N] [--layers N] [--vocabulary N] [--tokens N] [--samples N] [--precision bf16|fp32]
        [--masked]

from the repository's root. The model is a Llama with random weights and a vocabulary that is large
compared with its layers. With --masked it is a BERT that predicts 15 % of the tokens. Prints one
JSON object: the peak of the whole process, and of each part of it.
"""

import argparse
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, BertConfig, LlamaConfig

from bench.engine_run import WORLD
from ftcluster.planning.memory import ModelSize, need
from ftcluster_common.protocol.job import Job
from ftcluster_common.recipe import Recipe, Training
from ftcluster_common.tasks.lm import CausalLm, MaskedLm
from ftcluster_train.engine import checkpoints, loop
from ftcluster_train.engine.data.token_samples import Samples, SampleWriter
from ftcluster_train.engine.progress import ProgressLog
from ftcluster_train.engine.tasks.lm.causal_lm import CausalLmTask
from ftcluster_train.engine.tasks.lm.masked_lm import MaskedLmTask
from ftcluster_train.engine.tasks.lm.masking import BEGINS
from ftcluster_train.io.events import EventWriter

STEPS = 2
EVALUATED = 8192  # tokens
RESET_PEAK = "5"  # resets the peak, see clear_refs in proc(5)


class Tokenizer:
    """A tokenizer with the methods that a training needs."""

    pad_token_id = eos_token_id = pad_token_type_id = 0
    mask_token_id, is_fast, padding_side = 1, True, "right"

    def __init__(self, vocabulary: int) -> None:
        self._vocabulary = vocabulary

    def __len__(self) -> int:
        return self._vocabulary

    def save_pretrained(self, folder: Path) -> None:
        """Write nothing, because there is no tokenizer."""


def main() -> int:
    """Train for a few steps and return the exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--vocabulary", type=int, default=151_936)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--samples", type=int, default=1)
    parser.add_argument("--masked", action="store_true")
    parser.add_argument("--precision", choices=("bf16", "fp32"), default="bf16")
    options = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    torch.manual_seed(0)
    heads = max(options.width // 64, 1)
    kind, auto = LlamaConfig, AutoModelForCausalLM
    if options.masked:
        kind, auto = BertConfig, AutoModelForMaskedLM
    config = kind(
        hidden_size=options.width, num_hidden_layers=options.layers, num_attention_heads=heads,
        intermediate_size=4 * options.width, vocab_size=options.vocabulary, pad_token_id=0,
    )  # fmt: skip
    model = auto.from_config(config, dtype=torch.float32)
    parameters = sum(p.numel() for p in model.parameters())
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    training = Training(
        max_steps=STEPS, logging_steps=1, eval_strategy="steps", eval_steps=1,
        save_strategy="steps", save_steps=1, save_total_limit=1,
    )  # fmt: skip
    fields, name, task_class = CausalLm(block_size=options.tokens), "causal-lm", CausalLmTask
    if options.masked:
        fields, name, task_class = MaskedLm(max_length=options.tokens), "masked-lm", MaskedLmTask
    recipe = Recipe(
        "lm", "random", "", fields, name, batch_size=options.samples,
        precision=options.precision, training=training, from_scratch=True,
    )  # fmt: skip
    peaks: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        task = task_class(recipe, Tokenizer(options.vocabulary))
        job = Job("m", folder, folder, recipe, options.precision, ipex=False, snapshot_seconds=0)
        train_set = samples(folder / "train", STEPS * options.samples, options)
        validation = samples(folder / "validation", EVALUATED // options.tokens, options)
        loop.Evaluator.evaluate = watched(loop.Evaluator.evaluate, "evaluation", peaks)
        checkpoints.Checkpoints.save = watched(checkpoints.Checkpoints.save, "checkpoint", peaks)
        with part("training", peaks):
            log = ProgressLog(EventWriter(folder))
            loop.train(job, task, model, train_set, {"validation": validation}, WORLD, log)
    size = ModelSize(
        parameters, options.layers, options.width, heads, options.vocabulary,
        embeddings=(2 - options.masked) * options.vocabulary * options.width,
    )  # fmt: skip
    plan = need(
        size, options.precision, options.samples, options.tokens, True, evaluated=EVALUATED,
        logits_share=fields.mlm_probability if options.masked else 1.0,
    )  # fmt: skip
    print(json.dumps({
        **vars(options), "parameters": parameters, "peaks": peaks,
        "peak_bytes": max(peaks.values()), "plan_bytes": plan.total,
    }))  # fmt: skip
    return 0


@contextmanager
def part(name: str, peaks: dict[str, int]) -> Iterator[None]:
    """Record the peak within this context; an earlier peak counts for the enclosing part."""
    before = peak()
    Path("/proc/self/clear_refs").write_text(RESET_PEAK)
    yield
    peaks[name] = max(peaks.get(name, 0), peak())
    peaks["training"] = max(peaks.get("training", 0), before)
    Path("/proc/self/clear_refs").write_text(RESET_PEAK)


def watched(function, name, peaks):
    """Return a method that also records its peak."""

    def call(*arguments, **options):
        with part(name, peaks):
            return function(*arguments, **options)

    return call


def peak() -> int:
    """Return the maximum resident memory of this process since the last reset, in bytes."""
    found = re.search(r"VmHWM:\s*(\d+)", Path("/proc/self/status").read_text())
    assert found
    return int(found[1]) * 1024


def samples(folder: Path, count: int, options: argparse.Namespace) -> Samples:
    """Return random blocks."""
    writer = SampleWriter(folder, {"input_ids": "i", "kinds": "b"})
    for _ in range(count):
        sample = {"input_ids": torch.randint(options.vocabulary, (options.tokens,)).tolist()}
        writer.add(sample | {"kinds": [BEGINS] * options.tokens})
    writer.close()
    return Samples(folder)


if __name__ == "__main__":
    sys.exit(main())
