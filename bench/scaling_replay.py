"""Training steps with simulated computation (pauses) and a real exchange of gradients.

    ftcluster run -- scaling_replay.py '{"backend": "impi", "modes": ["bf16-whole"], "steps": 6,
        "forward": 1.0, "backward": 2.0, "rows": 900, "every": 4}'

In this way, hosts that share a few cores behave like separate hosts whose forward and backward
passes take the given, previously measured seconds: each layer waits for its part of them and then
has gradients, which are summed as the training loop or DistributedDataParallel (the mode `ddp`)
sums them, over the network. AdamW's step is real too. The model is DistilBERT-base; `rows` of its
embedding's 30,522 have gradients, and local steps are exchanged after `every` steps. Rank 0 prints
a line of JSON for each step of each mode.
"""

import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

import torch
import torch.distributed as dist
from transformers import DistilBertConfig, DistilBertForSequenceClassification

import ftcluster_train.mpi  # registers impi
from ftcluster_common.recipe import Training
from ftcluster_train.comm.world import gather_over_ranks, latency_of_collectives
from ftcluster_train.engine.optim.flat_step import FlatOptimizerStep, LocalOptimizerStep
from ftcluster_train.engine.optim.sharded_step import ShardedOptimizerStep
from ftcluster_train.patching.batch_context import NOTHING, current_context

assert ftcluster_train.mpi
EMBEDDINGS = "distilbert.embeddings"
VOCABULARY = 30522


class Layer(torch.autograd.Function):
    """A layer that only waits; its parameters' gradients are zeros."""

    @staticmethod
    def forward(
        ctx: Any, chain: torch.Tensor, times: tuple[float, float], rows: int, *parameters: Any
    ) -> torch.Tensor:
        ctx.parameters, ctx.backward_seconds, ctx.rows = parameters, times[1], rows
        time.sleep(times[0])
        return chain.clone()

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        time.sleep(ctx.backward_seconds)
        return grad_output, None, None, *(_gradient(p, ctx.rows) for p in ctx.parameters)


def _gradient(parameter: torch.nn.Parameter, rows: int) -> torch.Tensor | None:
    waiting = (current_context() or NOTHING).sinks.rows.get(parameter)
    if waiting is not None and len(parameter) == VOCABULARY:
        chosen = torch.randperm(VOCABULARY)[:rows].sort().values
        waiting.append((chosen, torch.zeros(rows, parameter.shape[1])))
        return None
    return torch.zeros_like(parameter)


class Replay(torch.nn.Module):
    """DistilBERT's parameters in layers whose passes take their share of the time."""

    def __init__(self, forward: float, backward: float, rows: int) -> None:
        super().__init__()
        config = DistilBertConfig(vocab_size=VOCABULARY)
        self.model = DistilBertForSequenceClassification(config)
        self._rows, self._seconds = rows, (forward, backward)

    def layers(self) -> Iterator[tuple[tuple[float, float], list[torch.nn.Parameter]]]:
        """Return the parameters of each layer and the seconds of its passes, in order."""
        named = list(self.model.named_parameters())
        size = sum(p.numel() for name, p in named if not name.startswith(EMBEDDINGS))

        def layer(pair: tuple[str, Any]) -> str:
            return (
                ".".join(pair[0].split(".")[:4]) if "layer." in pair[0] else pair[0].split(".")[1]
            )

        for _, group in groupby(named, key=layer):
            pairs = list(group)
            found = [p for _, p in pairs]
            part = (
                0.0 if pairs[0][0].startswith(EMBEDDINGS) else sum(p.numel() for p in found) / size
            )
            yield (part * self._seconds[0], part * self._seconds[1]), found

    def forward(self) -> torch.Tensor:
        """Return the loss."""
        chain = torch.zeros(1, requires_grad=True)
        for seconds, parameters in self.layers():
            chain = Layer.apply(chain, seconds, self._rows, *parameters)
        return chain.sum()


def optimizer_of(mode: str, model: Any, options: dict[str, Any]) -> Any:
    """Return the training loop's optimizer for a mode."""
    dtype, optimizer = mode.split("-")
    settings = Training(learning_rate=1e-5)
    if optimizer == "local":
        local = replace(settings, sync="local", sync_dtype=dtype, sync_steps=options["every"])
        return LocalOptimizerStep(model, local, torch.bfloat16)
    settings = replace(settings, gradient_dtype=dtype)
    if optimizer == "sharded":
        return ShardedOptimizerStep(model, settings, torch.bfloat16, 1)
    return FlatOptimizerStep(model, settings, torch.bfloat16, dist.get_world_size())


def steps_of(mode: str, options: dict[str, Any]) -> Iterator[dict[str, float]]:
    """Return each step's seconds, the rank's blocked seconds, and the bytes that it sent."""
    torch.manual_seed(1)
    replay = Replay(options["forward"], options["backward"], options["rows"])
    if mode == "ddp":
        shared = (
            torch.nn.parallel.DistributedDataParallel(replay)
            if dist.get_world_size() > 1
            else replay
        )
        adamw = torch.optim.AdamW(replay.parameters(), lr=1e-5, fused=True)
    else:
        step = optimizer_of(mode, replay.model, options)
    steps = 3 * options["every"] if mode.endswith("local") else options["steps"]
    for _ in range(steps):
        dist.barrier()
        began, cpu = time.perf_counter(), time.process_time()
        waited = sent = collectives = 0
        if mode == "ddp":
            shared().backward()
            torch.nn.utils.clip_grad_norm_(replay.parameters(), 1.0)
            adamw.step()
            adamw.zero_grad()
        else:
            traffic = step.traffic
            waited, sent, collectives = traffic.waited, traffic.sent, traffic.collectives
            with step.context:
                step.backward(replay(), last=True)
            step.step()
            waited, sent = traffic.waited - waited, traffic.sent - sent
            collectives = traffic.collectives - collectives
        yield {
            "seconds": time.perf_counter() - began,
            "cpu": time.process_time() - cpu,
            "waited": waited,
            "sent": sent,
            "collectives": collectives,
        }


def main(words: Sequence[str]) -> int:
    """Run the modes one after the other; return the exit code."""
    options = json.loads(words[0])
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", options.get("interface", "eth0"))
    dist.init_process_group(options["backend"])
    for mode in options["modes"]:
        for number, found in enumerate(steps_of(mode, options)):
            of_ranks = gather_over_ranks(list(found.values()))
            latency = latency_of_collectives()
            if dist.get_rank() == 0:
                ranks = [dict(zip(found, values, strict=True)) for values in of_ranks]
                line = {"mode": mode, "step": number, "ranks": ranks, "latency": latency}
                print(json.dumps(line), flush=True)
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
