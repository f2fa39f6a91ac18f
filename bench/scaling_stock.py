"""The baseline of bench.scaling_proof: transformers' Trainer on MRPC, as run_glue trains it.

    ftcluster run -- scaling_stock.py SAMPLES STEPS

in a folder with train.jsonl and a tokenizer. Trainer's defaults, gloo and DistributedDataParallel
with fp32 gradients; batches are padded to their longest sample. Rank 0 prints one JSON object:
seconds and padded tokens of each step.
"""

import json
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoTokenizer,
    DataCollatorWithPadding,
    DistilBertConfig,
    DistilBertForSequenceClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

MAX_LENGTH = 128


class Clock(TrainerCallback):
    """A callback that records the end of each step."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """Record a step; Trainer calls this method."""
        self.times.append(time.perf_counter())


class Collator:
    """A collator that pads to the longest sample of a batch, and counts its tokens."""

    def __init__(self, tokenizer: Any) -> None:
        self._pad, self.tokens = DataCollatorWithPadding(tokenizer), []

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        """Return a batch."""
        batch = self._pad(rows)
        self.tokens.append(batch["input_ids"].numel())
        return dict(batch)


def main() -> int:
    """Train and return the exit code."""
    samples, steps = map(int, sys.argv[1:3])
    here = Path(__file__).parent
    tokenizer = AutoTokenizer.from_pretrained(here)
    lines = (here / "train.jsonl").read_text(encoding="utf-8").splitlines()
    rows = []
    for line in lines:
        row = json.loads(line)
        pair = row["sentence1"], row["sentence2"]
        encoded = tokenizer(*pair, truncation=True, max_length=MAX_LENGTH)
        rows.append({"input_ids": encoded["input_ids"], "label": row["label"]})
    arguments = TrainingArguments(
        output_dir="out",
        per_device_train_batch_size=samples,
        max_steps=steps,
        learning_rate=1e-4,
        warmup_steps=2,
        bf16=True,
        use_cpu=True,
        ddp_backend="gloo",
        report_to="none",
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        remove_unused_columns=False,
        # otherwise torch warns, and searches for unused parameters in each step
        ddp_find_unused_parameters=False,
    )
    torch.manual_seed(1)
    model = DistilBertForSequenceClassification(DistilBertConfig(vocab_size=len(tokenizer)))
    clock, collator = Clock(), Collator(tokenizer)
    Trainer(model, arguments, train_dataset=rows, data_collator=collator, callbacks=[clock]).train()
    if arguments.process_index == 0:
        seconds = [after - before for before, after in pairwise(clock.times)]
        print(json.dumps({"seconds": seconds, "tokens": collator.tokens}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
