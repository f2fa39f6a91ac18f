"""Every parameter's gradient is as exact as that of plain transformers, in bf16 and in fp32.

Each architecture takes one step with random weights and without dropout. The reference is plain
transformers in fp32. By default each has one layer of width 512, 2,000 tokens, one thread and
padding on the right, or less where the CPU has no instructions for bf16, and most are left to
`./test long`: test_architectures.py compares the gradients of small models of all.
`./test gradients` takes two layers of BERT-base's width, 4,000 tokens, one and two threads and
padding on either side: 20 minutes.
"""

import copy
import math
import os
import statistics
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from ftcluster_train.engine.models import call_model
from ftcluster_train.engine.optim.flat_params import FlatWeights, PendingGathers
from ftcluster_train.engine.optim.gradient_buckets import GradientBuckets
from ftcluster_train.engine.progress import ProgressLog
from ftcluster_train.health.probe import cpu_flags
from ftcluster_train.patching.patch_model import Optimizations, patch_model
from tests.engine.architectures import FEW, VOCABULARY, Kind, Size, kinds, long_but, make_kind
from tests.engine.jobs import CLASSES, make_job, make_task_of

# allowed multiple of the error of plain transformers in bf16, or at least this error
TIMES, LEAST = 1.5, 0.01
MEDIAN = 1.15  # limit of the median over all parameters
# limits in fp32, where a small gradient is a sum of large values
MOST_IN_FP32, MEDIAN_IN_FP32 = 1e-3, 1e-5
EVERYTHING = bool(os.environ.get("FTCLUSTER_TEST_GRADIENTS"))
# without instructions, torch's bf16 matmuls are ten times as slow
EMULATED = not EVERYTHING and not {"amx_bf16", "avx512_bf16"} & {*cpu_flags()}
ROWS, LENGTH = (16, 250) if EVERYTHING else (4, 80) if EMULATED else (8, 250)
PLACES = ("start", "end")
WIDTH = 768 if EVERYTHING else 256 if EMULATED else 512
LAYERS = 2 if EVERYTHING else 1
DRAWS = 2 if EVERYTHING else 1  # number of batches
# architectures whose error depends on chance: the scores of a few tokens determine the gradients of
# XLNet's segments, and cancel there; T5 has a ReLU
DRAWS_OF = {"xlnet": 8 if EVERYTHING else 3, "t5": 8 if EVERYTHING or EMULATED else 3}
LENGTH_OF = {"mamba": 16}  # tokens per sample
# in fp32: a sum before T5's ReLU that is 0 up to rounding, as in batch 0, decides about gradients
SEED_OF = {"t5": 1}
KINDS = kinds(Size(WIDTH, WIDTH // 64, LAYERS, window=64))
Gradients = dict[str, torch.Tensor]


def make_inputs(
    kind: Kind, side: str, seed: int, length: int = LENGTH, rows: int = ROWS
) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Return model inputs and targets; some tokens are much more frequent."""
    draw = torch.Generator().manual_seed(seed)
    tokens = (4 + (VOCABULARY - 4) * torch.rand(rows, length, generator=draw) ** 3).long()
    if kind.task == "causal-lm":
        return {"input_ids": tokens, "use_cache": False}, {"tokens": tokens}
    lengths = torch.randint(length // 3, length, (rows, 1), generator=draw)
    lengths[0] = length
    mask = (torch.arange(length) < lengths).long()
    mask = mask.flip(1) if side == "left" else mask
    types = (torch.arange(length).expand(rows, -1) > length // 4).long() * mask
    last = (length - 1 - mask.flip(1).argmax(1)).unsqueeze(1)
    tokens.scatter_(1, last, 3)  # T5 needs an end-of-text token
    inputs = {"input_ids": tokens * mask, "attention_mask": mask, "token_type_ids": types}
    if kind.task == "question-answering":
        places = {name: torch.randint(5, length // 3, (rows,), generator=draw) for name in PLACES}
        offset = (length - mask.sum(1)) * (side == "left")
        return inputs, {n: p + offset for n, p in places.items()} | {"tokens": mask > 0}
    return inputs, {"labels": torch.randint(CLASSES, (rows,), generator=draw)}


def make_batches(name: str, side: str) -> list[Any]:
    """Return enough batches to make a small error significant."""
    length = LENGTH_OF.get(name, LENGTH)
    seeds = range(DRAWS_OF.get(name, DRAWS))
    return [make_inputs(KINDS[name], side, seed, length) for seed in seeds]


def plain(model: PreTrainedModel, task: Any, batch: Any, bf16: bool) -> Gradients:
    inputs, targets = batch
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        outputs = call_model(model, inputs)
    (task.loss(outputs, targets) / ROWS).backward()
    return {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


def ours(model: PreTrainedModel, task: Any, batch: Any, bf16: bool) -> Gradients:
    inputs, targets = batch
    names = {p: name for name, p in model.named_parameters()}
    kernels = patch_model(model, task, True, Optimizations(), ProgressLog())
    model.train()
    weights = FlatWeights(model, torch.bfloat16 if bf16 else torch.float32)
    gradients = GradientBuckets(weights, 1)
    with weights.context(gradients.sinks, PendingGathers()), kernels:
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            outputs = call_model(model, inputs)
        loss = task.loss(outputs, targets) / ROWS
        gradients.start_backward(last=True)
        loss.backward()
    flat = gradients.wait()
    return {names[p]: flat[place].view(p.shape) for p, place in weights.layout.slices.items()}


def errors(found: Sequence[Gradients], exact: Sequence[Gradients]) -> dict[str, float]:
    """Return each parameter's relative error over all batches.

    Gradients that are 0 up to rounding are skipped.
    """
    norms = {name: math.hypot(*(float(of[name].norm()) for of in exact)) for name in exact[0]}
    floor = 1e-6 * max(norms.values())
    return {
        name: math.hypot(
            *(float((a[name] - b[name]).norm()) for a, b in zip(found, exact, strict=True))
        )
        / norm
        for name, norm in norms.items()
        if norm > floor
    }


@pytest.fixture
def set_threads() -> Iterator[Callable[[int], None]]:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def of_cases(test: Any) -> Any:
    cases = pytest.mark.parametrize("name", KINDS if EVERYTHING else long_but(FEW, KINDS))(test)
    cases = pytest.mark.parametrize("threads", (1, 2) if EVERYTHING else (1,))(cases)
    return pytest.mark.parametrize("side", ("right", "left") if EVERYTHING else ("right",))(cases)


@of_cases
def test_gradients_in_fp32(
    tmp_path: Path, name: str, threads: int, side: str, set_threads: Callable[[int], None]
) -> None:
    set_threads(threads)
    model, task = make_kind(name, KINDS[name]), make_task_of(make_job(tmp_path, KINDS[name].task))
    length, seed = LENGTH_OF.get(name, LENGTH), SEED_OF.get(name, 0)
    batch = make_inputs(KINDS[name], side, seed, length, rows=2)
    exact = [plain(copy.deepcopy(model), task, batch, bf16=False)]
    found = errors([ours(model, task, batch, bf16=False)], exact)
    assert len(found) > 8
    assert max(found.values()) < MOST_IN_FP32
    assert statistics.median(found.values()) < MEDIAN_IN_FP32


@of_cases
def test_gradients_are_as_exact_as_those_of_autocast(
    tmp_path: Path, name: str, threads: int, side: str, set_threads: Callable[[int], None]
) -> None:
    set_threads(threads)
    model, task = make_kind(name, KINDS[name]), make_task_of(make_job(tmp_path, KINDS[name].task))
    batches = make_batches(name, side)
    exact = [plain(copy.deepcopy(model), task, batch, bf16=False) for batch in batches]
    stock = errors(
        [plain(copy.deepcopy(model), task, batch, bf16=True) for batch in batches], exact
    )
    mine = errors([ours(copy.deepcopy(model), task, batch, bf16=True) for batch in batches], exact)
    assert mine.keys() == stock.keys()
    assert len(mine) > 8
    worse = {
        n: f"{error:.4f} instead of {stock[n]:.4f}"
        for n, error in mine.items()
        if error > max(TIMES * stock[n], LEAST)
    }
    assert worse == {}
    assert statistics.median(error / stock[n] for n, error in mine.items()) < MEDIAN
