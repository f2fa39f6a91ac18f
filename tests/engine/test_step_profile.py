"""The categories of a step's time: their sum, and how they follow the sizes of a model."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from torch import nn
from torch.profiler import profile

from bench.step_profile import (
    ACTIVATIONS,
    ALL_REDUCE,
    ATTENTION,
    CATEGORIES,
    COPIES,
    EMBEDDING,
    GRADIENT_NORM,
    LOSS,
    MATMULS,
    NORMS,
    OPTIMIZER,
    OTHER,
    PYTHON,
    WAITING,
    category_of_module,
    profiled,
    steps_of,
    turns,
)
from ftcluster_kernels import simd
from ftcluster_train.comm.world import World
from ftcluster_train.engine.loop import train
from ftcluster_train.engine.progress import ProgressLog
from tests.engine.jobs import make_job, make_samples, make_task_of, write_samples
from tests.engine.models import VOCABULARY, make_model
from tests.engine.ranks import on_ranks

WARM_UP = 2
ALONE = World(rank=0, size=1, backend="gloo")


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


@dataclass(frozen=True)
class Profile:
    """A profiled training: seconds by category and by operator, and the losses of its steps."""

    seconds: float
    parts: dict[str, float]
    operators: dict[str, float]
    losses: Sequence[float]

    def share(self, *categories: str) -> float:
        return sum(self.parts[name] for name in categories) / self.seconds


def training(
    folder: Path, kind: str, task: str, world: World = ALONE, precision: str = "fp32",
    vocabulary: int = VOCABULARY, **changes: Any,
) -> Callable[[ProgressLog], Any]:  # fmt: skip
    """Prepare a training; return a function that runs it with a log."""
    job = make_job(folder, task, precision, max_steps=steps_of(WARM_UP))
    samples = write_samples(folder / "samples", make_samples(task, 64))
    model = make_model(kind, task, dropout=0.1, **changes)
    model.resize_token_embeddings(vocabulary)
    prepared = make_task_of(job)
    return lambda log: train(job, prepared, model, samples, {}, world, log)


def profile_of(folder: Path, kind: str, task: str, **changes: Any) -> Profile:
    run, found = training(folder, kind, task, **changes), dict[str, Any]()
    with profiled(WARM_UP, found) as profiler:
        log = Steps(profiler)
        run(log)
    return Profile(**found, losses=log.losses)


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize(
    ("kind", "task", "precision"),
    [
        ("bert", "text-classification", "fp32"),
        ("distilbert", "masked-lm", "bf16"),
        ("gpt2", "causal-lm", "bf16"),
        ("llama", "causal-lm", "fp32"),
        ("minilm", "question-answering", "bf16"),
    ],
)
def test_the_categories_of_a_step_add_up_to_its_time(
    tmp_path: Path, kind: str, task: str, precision: str
) -> None:
    found = profile_of(tmp_path, kind, task, precision=precision)
    assert list(found.parts) == list(CATEGORIES)
    assert sum(found.parts.values()) == pytest.approx(found.seconds, rel=1e-3)
    present = {name for name, seconds in found.parts.items() if seconds > 0}
    assert present >= {
        MATMULS, ATTENTION, NORMS, ACTIVATIONS, EMBEDDING, LOSS, OPTIMIZER, GRADIENT_NORM, COPIES,
        PYTHON,
    }  # fmt: skip
    assert found.share(OTHER) < 0.1


@pytest.mark.usefixtures("world")
def test_a_profile_changes_no_loss_and_restores_the_code(tmp_path: Path) -> None:
    before = nn.Module.__call__, simd.loaded_library
    found = profile_of(tmp_path / "profiled", "bert", "text-classification")
    assert (nn.Module.__call__, simd.loaded_library) == before
    plain = Steps()
    training(tmp_path / "plain", "bert", "text-classification")(plain)
    assert found.losses == plain.losses
    assert len(plain.losses) == steps_of(WARM_UP)


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize(
    ("category", "changes"),
    [
        (MATMULS, {"n_embd": 256}),
        (ACTIVATIONS, {"n_inner": 8192}),
        (OPTIMIZER, {"n_positions": 100_000}),
    ],
)
def test_a_larger_part_of_the_model_has_a_larger_share(
    tmp_path: Path, category: str, changes: dict[str, Any]
) -> None:
    small = profile_of(tmp_path / "small", "gpt2", "causal-lm")
    large = profile_of(tmp_path / "large", "gpt2", "causal-lm", **changes)
    assert large.share(category) > 1.2 * small.share(category)
    assert large.parts[category] > 1.5 * small.parts[category]


def share_of_exchange(rank: int, size: int, folder: Path) -> float:
    world = World(rank, size, "gloo")
    found = profile_of(folder / f"run-{rank}", "gpt2", "causal-lm", world=world, n_embd=128)
    return found.share(ALL_REDUCE, WAITING)


@pytest.mark.usefixtures("world")
def test_several_ranks_wait_for_the_exchange(tmp_path: Path) -> None:
    alone = profile_of(tmp_path / "alone", "gpt2", "causal-lm", n_embd=128)
    together = on_ranks(share_of_exchange, 2, tmp_path, tmp_path)
    assert min(together) > alone.share(ALL_REDUCE, WAITING)


@pytest.mark.parametrize("kind", ["bert", "distilbert", "gpt2", "llama", "modernbert", "t5"])
def test_layers_of_transformers_have_categories(kind: str) -> None:
    found = {type(module).__name__: category_of_module(type(module))
             for module in make_model(kind, "text-classification").modules()}  # fmt: skip
    expected = {
        "Linear": MATMULS,
        "Conv1D": MATMULS,
        "Embedding": EMBEDDING,
        "Dropout": ACTIVATIONS,
    }
    for name, category in found.items():
        if "Norm" in name:
            assert category == NORMS, name
        elif "Attention" in name:
            assert category == ATTENTION, name
        else:
            assert category == expected.get(name, category), name
    assert {*found.values()} >= {MATMULS, NORMS, ATTENTION, EMBEDDING}


def test_steps_with_and_without_a_profiler_take_turns() -> None:
    numbers = turns(WARM_UP)
    assert all(WARM_UP <= plain < with_profiler for plain, with_profiler in numbers)
    assert numbers[-1][1] == steps_of(WARM_UP) - 1
