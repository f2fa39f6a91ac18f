"""The categories of a step's time: their sum, and how they follow the sizes of a model."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.profiler import profile

from bench import step_profile
from bench.step_profile import (
    ACTIVATIONS,
    ALL_REDUCE,
    ATTENTION,
    CATEGORIES,
    EMBEDDING,
    GRADIENT_NORM,
    LOSS,
    MATMULS,
    NORMS,
    OPTIMIZER,
    OTHER,
    PYTHON,
    WAITING,
    parts_named,
    profiled,
    steps_of,
)
from ftcluster_kernels import simd
from ftcluster_train.comm.world import World
from ftcluster_train.engine.loop import train
from ftcluster_train.engine.progress import ProgressLog
from tests.engine.jobs import make_job, make_samples, make_task_of, write_samples
from tests.engine.models import make_model
from tests.engine.ranks import on_ranks

WARM_UP = 1


class Steps(ProgressLog):
    """A log that marks the end of each step for a profiler, and keeps the losses."""

    def __init__(self, profiler: profile | None = None) -> None:
        super().__init__()
        self._profiler, self.losses = profiler, list[float]()

    def write(self, event: str, **fields: Any) -> None:
        if event == "step":
            self.losses.append(fields["loss"])
            if self._profiler:
                self._profiler.step()


def train_small(
    folder: Path, kind: str, task: str, log: ProgressLog, world: World, precision: str = "fp32",
    **changes: Any,
) -> None:  # fmt: skip
    job = make_job(folder, task, precision, max_steps=steps_of(WARM_UP))
    samples = write_samples(folder / "samples", make_samples(task, 64, length=40))
    model = make_model(kind, task, dropout=0.1, **changes)
    train(job, make_task_of(job), model, samples, {}, world, log)


def profile_of(folder: Path, kind: str, task: str, world: World, **changes: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    with profiled(WARM_UP, found) as profiler:
        train_small(folder, kind, task, Steps(profiler), world, **changes)
    return found


def shares(found: dict[str, Any]) -> dict[str, float]:
    return {name: seconds / found["seconds"] for name, seconds in found["parts"].items()}


@pytest.mark.parametrize(
    ("kind", "task", "precision"),
    [
        ("bert", "text-classification", "fp32"),
        ("distilbert", "masked-lm", "bf16"),
        ("gpt2", "causal-lm", "bf16"),
        ("llama", "instruction-tuning", "fp32"),
        ("t5", "seq2seq-lm", "fp32"),
    ],
)
def test_the_categories_of_a_step_add_up_to_its_time(
    tmp_path: Path, world: World, kind: str, task: str, precision: str
) -> None:
    if task == "instruction-tuning":
        pytest.skip("")
    found = profile_of(tmp_path, kind, task, world, precision=precision)
    assert list(found["parts"]) == list(CATEGORIES)
    assert sum(found["parts"].values()) == pytest.approx(found["seconds"])
    present = {name for name, seconds in found["parts"].items() if seconds > 0}
    assert present >= {
        MATMULS, ATTENTION, NORMS, ACTIVATIONS, EMBEDDING, LOSS, OPTIMIZER, GRADIENT_NORM, PYTHON
    }  # fmt: skip
    assert not present & {ALL_REDUCE, WAITING}
    assert shares(found)[OTHER] < 0.1, found["operators"]
