"""Training steps of BERT-base with real computation, and the times of the last step's parts.

    mpirun ... real_steps.py '{"backend": "impi", "steps": 8, "samples": 32, "tokens": 128,
        "precision": "bf16", "layers": 12}'

Each rank takes steps as the training loop does: kernels, gradients summed in buckets in bf16 beside
the backward pass, AdamW. Every other step has no exchange, as on a host alone, so that both kinds
meet the same cores. Rank 0 prints a line of JSON for each step, with the seconds
of each rank; that of the last step has `spans` too: what this rank did, from when to when, in
seconds from the step's begin.
"""

import json
import os
import sys
import time
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from transformers import AutoConfig, AutoModelForSequenceClassification

import ftcluster_train.mpi  # registers impi
from ftcluster_common.recipe import Training
from ftcluster_train.comm import all_reduce
from ftcluster_train.comm.world import gather_over_ranks
from ftcluster_train.engine.optim.flat_step import FlatOptimizerStep
from ftcluster_train.engine.optim.gradient_buckets import GradientBuckets
from ftcluster_train.engine.progress import ProgressLog
from ftcluster_train.patching.patch_model import Optimizations, patch_model

assert ftcluster_train.mpi
VOCABULARY = 30522
Span = tuple[str, str, float, float]  # row, part, begin, end


class Spans:
    """Times of each part of a step, from `time.perf_counter`."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.found: list[Span] = []
        self._layers = {p: layer_of(name) for name, p in model.named_parameters()}
        self._since = 0.0
        self._send, self._add = all_reduce.all_reduce_bf16, GradientBuckets._add_gradient

    def watch(self) -> None:
        """Record when gradients are ready, and each exchange in its thread."""

        def send(tensor: torch.Tensor, *others: Any) -> None:
            began = time.perf_counter()
            self._send(tensor, *others)
            self.found.append(
                ("exchange", f"{tensor.nbytes >> 20} MiB", began, time.perf_counter())
            )

        def add(buckets: GradientBuckets, parameter: torch.nn.Parameter) -> None:
            self._add(buckets, parameter)
            self.until("backward", self._layers[parameter])

        all_reduce.all_reduce_bf16 = send
        GradientBuckets._add_gradient = add

    def begin(self) -> None:
        """Begin a step."""
        self.found.clear()
        self._since = time.perf_counter()

    def until(self, row: str, part: str) -> None:
        """Record the work done since the last call."""
        now = time.perf_counter()
        if self.found and self.found[-1][:2] == (row, part):
            self.found[-1] = (row, part, self.found[-1][2], now)
        else:
            self.found.append((row, part, self._since, now))
        self._since = now


def layer_of(name: str) -> str:
    """Return a parameter's layer as named in a picture.

    >>> layer_of("bert.encoder.layer.11.output.dense.weight"), layer_of("classifier.weight")
    ('layer 11', 'head')
    """
    words = name.split(".")
    if "layer" in words:
        return f"layer {words[words.index('layer') + 1]}"
    return "embeddings" if "embeddings" in words else "head"


def exchange(buckets: GradientBuckets, ranks: int, tables: dict[Any, Any]) -> None:
    """Make buckets exchange gradients among `ranks` ranks from the next step on."""
    buckets._world_size, buckets._tables = ranks, tables


def main(words: Sequence[str]) -> int:
    """Run the steps and return the exit code."""
    options = json.loads(words[0])
    torch.set_num_threads(1)
    rank, ranks = int(os.environ["PMI_RANK"]), int(os.environ["PMI_SIZE"])
    dist.init_process_group(options["backend"], rank=rank, world_size=ranks)
    torch.manual_seed(0)
    config = AutoConfig.for_model("bert", num_hidden_layers=options["layers"])
    model = AutoModelForSequenceClassification.from_config(config)
    kernels = patch_model(model, None, True, Optimizations(cross_entropy=False), ProgressLog(None))
    spans = Spans(model)
    spans.watch()  # before the optimizer's hooks
    bf16 = options["precision"] == "bf16"
    dtype = torch.bfloat16 if bf16 else torch.float32
    optimizer = FlatOptimizerStep(model, Training(gradient_dtype="bf16"), dtype, ranks)
    buckets = optimizer.gradients
    tables = buckets._tables
    model.train()
    torch.manual_seed(rank)
    for step in range(options["steps"]):
        alone = step % 2 == 0  # the last step exchanges gradients
        exchange(buckets, 1 if alone else ranks, {} if alone else tables)
        tokens = torch.randint(VOCABULARY, (options["samples"], options["tokens"]))
        dist.barrier()
        spans.begin()
        began, waited = time.perf_counter(), optimizer.traffic.waited
        with optimizer.context, kernels:
            with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
                loss = model(input_ids=tokens, labels=tokens[:, 0] % 2).loss
            spans.until("forward", "forward")
            optimizer.backward(loss, last=True)
        spans.until("backward", "end")
        optimizer.step()
        spans.until("optimizer", "wait, AdamW")
        seconds = time.perf_counter() - began
        of_ranks = gather_over_ranks([seconds, optimizer.traffic.waited - waited])
        if rank == 0:
            line: dict[str, Any] = {"step": step, "alone": alone, "ranks": of_ranks}
            if step == options["steps"] - 1:
                line["spans"] = [
                    (row, part, round(first - began, 4), round(last - began, 4))
                    for row, part, first, last in spans.found
                ]
            print(json.dumps(line), flush=True)
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
