"""The step time with a sharded and with a whole optimizer, in the same processes.

    .venv/bin/ftcluster run [OPTIONS] -- bench/sharded_step.py [CASE ...] [--turns N] [--steps N]

The ranks have both optimizers, and take some steps with each in turns; a time is the mean of a
turn's steps, the result the median over the turns. Rank 0 prints a table and a JSON document.
"""

import argparse
import json
import math
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification

from ftcluster_common.recipe import Recipe, Training
from ftcluster_common.tasks.lm import CausalLm
from ftcluster_train.comm.world import join_world, leave_world
from ftcluster_train.engine.optim.base import OptimizerStep
from ftcluster_train.engine.optim.flat_step import FlatOptimizerStep
from ftcluster_train.engine.optim.sharded_step import ShardedOptimizerStep
from ftcluster_train.engine.progress import ProgressLog
from ftcluster_train.engine.tasks.lm.causal_lm import CausalLmTask
from ftcluster_train.patching.patch_model import Optimizations, patch_model

PARTS = ("forward", "backward", "optimizer")


@dataclass(frozen=True)
class Case:
    """The case of a rank: samples with the same number of tokens in each step."""

    model: str
    samples: int
    tokens: int


CASES = {  # for two ranks: MRPC's batch of 32 pairs, which have 54 tokens on average
    "mrpc": Case("distilbert", 16, 54),
    "gpt2": Case("gpt2", 2, 256),
}
KINDS = {
    "whole": lambda model, ranks: FlatOptimizerStep(model, Training(), torch.bfloat16, ranks),
    "sharded": lambda model, _: ShardedOptimizerStep(model, Training(), torch.bfloat16, 1),
}


def make_step(
    case: Case, make: Callable[[Any, int], OptimizerStep], ranks: int
) -> Callable[[], list[float]]:
    """Return a function that runs a step and returns the seconds of its PARTS."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(case.model)
    task: Any = None
    if case.model == "gpt2":
        model = AutoModelForCausalLM.from_config(config)
        recipe = Recipe("bench", case.model, "", CausalLm(), task="causal-lm")
        task = CausalLmTask(recipe, None)
    else:
        model = AutoModelForSequenceClassification.from_config(config)
    kernels = patch_model(
        model, task, True, Optimizations(cross_entropy=task is not None), ProgressLog(None)
    )
    optimizer = make(model, ranks)
    model.train()
    tokens = torch.randint(1000, (case.samples, case.tokens))

    def step() -> list[float]:
        began = time.perf_counter()
        with optimizer.context, kernels:
            with torch.autocast("cpu", torch.bfloat16):
                if task:
                    outputs = model(input_ids=tokens, use_cache=False)
                else:
                    loss = model(input_ids=tokens, labels=tokens[:, 0] % 2).loss
            if task:
                loss = task.loss(outputs, {"tokens": tokens})
            forward = time.perf_counter()
            optimizer.backward(loss, last=True)
        backward = time.perf_counter()
        norm = optimizer.step()
        assert math.isfinite(norm)
        return [forward - began, backward - forward, time.perf_counter() - backward]

    return step


def measure(name: str, turns: int, steps: int, ranks: int) -> dict[str, Any]:
    """Return milliseconds of a step and of its parts, by kind."""
    takes = {kind: make_step(CASES[name], make, ranks) for kind, make in KINDS.items()}
    found: dict[str, list[list[float]]] = {kind: [] for kind in KINDS}
    for turn in range(turns + 1):
        for kind in list(KINDS)[:: 1 if turn % 2 else -1]:
            dist.barrier()
            began = time.perf_counter()
            parts = [takes[kind]() for _ in range(steps)]
            dist.barrier()  # waits for collectives in flight
            whole = (time.perf_counter() - began) / steps
            means = [statistics.mean(column) for column in zip(*parts, strict=True)]
            if turn:  # the first turn allocates memory
                found[kind].append([whole, *means])
    return {
        kind: dict(
            zip(
                ("step", *PARTS),
                (round(1000 * statistics.median(one), 1) for one in zip(*rows, strict=True)),
                strict=True,
            )
        )
        | {"turns": [round(1000 * row[0], 1) for row in rows]}
        for kind, rows in found.items()
    }


def main() -> None:
    """Measure, and print the results on rank 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(CASES))
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--steps", type=int, default=4, help="number of steps in each turn")
    options = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    world = join_world()
    for name in options.cases or CASES:
        found = measure(name, options.turns, options.steps, world.size)
        if world.rank == 0:
            for kind, times in found.items():
                text = ", ".join(f"{part} {times[part]:.0f}" for part in ("step", *PARTS))
                print(f"{name}, {world.size} ranks, {world.backend}: {kind}: {text} ms")
            print(json.dumps({"case": name, "ranks": world.size, **found}), flush=True)
    leave_world()


if __name__ == "__main__":
    main()
