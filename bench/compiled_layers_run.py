"""The passes of bench/compiled_layers, in a process with the Python of a host's stack.

    PYTHON -m bench.compiled_layers_run ENCODER OPTIONS

OPTIONS is a JSON object: `squad` (file), `precision` and `turns`. Prints one JSON object.
"""

import json
import os
import statistics
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModel, AutoTokenizer

from ftcluster_train.engine.progress import ProgressLog
from ftcluster_train.patching.patch_model import Optimizations, patch_model

WARM_UP, ROWS, APART, LENGTH = 2, 32, 20, 256  # rows are APART lines apart in the file


class Task:
    """A task that reads neither padding nor logits."""

    large_vocabulary, reads_padding = False, False

    def use_fused_loss(self, _: Any) -> None:
        """Return no weight, because the model has no head."""


def main() -> int:
    """Measure all ways in turns, print the results and return the exit code."""
    encoder, options = Path(sys.argv[1]), json.loads(sys.argv[2])
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    batch = batch_of(encoder, Path(options["squad"]))
    ways = ("torch", "compiled", "ours")
    models = {way: AutoModel.from_pretrained(encoder).train() for way in ways}
    for layer in models["compiled"].encoder.layer:
        layer.compile()
    kernels = patch_model(models["ours"], Task(), True, Optimizations(), ProgressLog())

    def seconds(way: str) -> float:
        bf16 = options["precision"] == "bf16"
        began = time.perf_counter()
        with (
            kernels if way == "ours" else nullcontext(),
            torch.autocast("cpu", torch.bfloat16, enabled=bf16),
        ):
            output = models[way](**batch).last_hidden_state
        output[batch["attention_mask"].bool()].square().mean().backward()
        return time.perf_counter() - began

    compilation = seconds("compiled")
    times = [{way: seconds(way) for way in ways} for _ in range(WARM_UP + options["turns"])]
    counted = {way: [turn[way] for turn in times[WARM_UP:]] for way in ways}
    found = {
        "seconds": {way: statistics.median(of) for way, of in counted.items()},
        "all": counted,
        "compilation": compilation,
        "tokens": int(batch["attention_mask"].sum()),
        "padded_tokens": batch["input_ids"].numel(),
    }
    print(json.dumps(found))
    return 0


def batch_of(encoder: Path, squad: Path) -> dict[str, torch.Tensor]:
    """Return a batch of contexts, padded to the longest."""
    with squad.open(encoding="utf-8") as lines:
        contexts = [json.loads(next(lines))["context"] for _ in range(APART * ROWS)][::APART]
    tokenizer = AutoTokenizer.from_pretrained(encoder)
    batch = tokenizer(
        contexts, return_tensors="pt", padding=True, truncation=True, max_length=LENGTH
    )
    return dict(batch)


if __name__ == "__main__":
    sys.exit(main())
