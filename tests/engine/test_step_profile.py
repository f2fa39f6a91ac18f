"""The categories of a step's events: their sum in seconds, and their number by the model's sizes.

Seconds depend on what else the machine does. Numbers of events do not, so they show whether events
are in the right category.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from torch import nn
from torch.profiler import profile

from bench.step_profile import (
    ACTIVATIONS,
    ADDITIONS,
    ALL_REDUCE,
    ATTENTION,
    CATEGORIES,
    COPIES,
    EMBEDDING,
    GRADIENT_NORM,
    LOOP,
    LOSS,
    MATMULS,
    NORMS,
    OPTIMIZER,
    OTHER,
    PART,
    PYTHON,
    STEP,
    WAITING,
    category_of_module,
    in_steps,
    profiled,
    steps_of,
    turns,
    with_categories,
)
from ftcluster_kernels import cross_entropy, simd
from ftcluster_train.comm.world import World
from ftcluster_train.engine.loop import train
from ftcluster_train.engine.progress import ProgressLog
from tests.engine.jobs import make_job, make_samples, make_task_of, write_samples
from tests.engine.models import VOCABULARY, make_model
from tests.engine.ranks import on_ranks

WARM_UP = 2
ALONE = World(rank=0, size=1, backend="gloo")
BATCH, BLOCK = 8, 16  # samples of a step, and tokens of a sample of a causal model
# by name of an operator that computes much: its categories
OF_NAME: dict[str, set[str]] = {
    "aten::addmm": {MATMULS},
    "aten::addmm_": {MATMULS, ATTENTION},  # in bf16, bmm calls it on CPUs with AVX2
    "aten::bmm": {ATTENTION},
    "aten::mm": {MATMULS},
    "aten::embedding": {EMBEDDING},
    "aten::embedding_dense_backward": {EMBEDDING},
    "aten::_log_softmax": {LOSS},
    "aten::_log_softmax_backward_data": {LOSS},
    "aten::tanh": {ACTIVATIONS},
    "aten::tanh_backward": {ACTIVATIONS},
    "loop: adamw": {OPTIMIZER},
    "loop: cross_entropy": {LOSS},
    "loop: dropout": {ACTIVATIONS, ATTENTION},
    "loop: gelu": {ACTIVATIONS},
    "loop: norm": {NORMS},
    "loop: norm_backward": {NORMS},
    "loop: rotary": {ATTENTION},
    "loop: silu": {ACTIVATIONS},
    "loop: softmax": {ATTENTION},
    "loop: softmax_backward": {ATTENTION},
    "loop: tanh_gelu": {ACTIVATIONS},
}


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
    """A profiled training.

    Attributes:
        seconds: mean time of a profiled step.
        parts: seconds of a step by category.
        operators: seconds of a step by operator.
        losses: losses of all steps.
        all_events: events of the last profiled step and of other threads.
        events: events of this step with their categories.
    """

    seconds: float
    parts: dict[str, float]
    operators: dict[str, float]
    losses: Sequence[float]
    all_events: Sequence[Any]
    events: Sequence[tuple[Any, str]]

    @property
    def counts(self) -> Counter[str]:
        """Return the number of events by category."""
        return Counter(category for _, category in self.events)

    @property
    def computing(self) -> Counter[tuple[str, str]]:
        """Return the number of our loops and of the operators in OF_NAME, by category and name."""
        return Counter(
            (category, event.name)
            for event, category in self.events
            if event.name.startswith(LOOP) or event.name in OF_NAME
        )


def training(
    folder: Path, kind: str, task: str, world: World = ALONE, precision: str = "fp32",
    vocabulary: int = VOCABULARY, dropout: float = 0.1, **changes: Any,
) -> Callable[[ProgressLog], Any]:  # fmt: skip
    """Prepare a training; return a function that runs it with a log."""
    job = make_job(folder, task, precision, BATCH, max_steps=steps_of(WARM_UP))
    samples = write_samples(folder / "samples", make_samples(task, 64))
    model = make_model(kind, task, dropout=dropout, **changes)
    model.resize_token_embeddings(vocabulary)
    prepared = make_task_of(job)
    return lambda log: train(job, prepared, model, samples, {}, world, log)


def profile_of(folder: Path, kind: str, task: str, **changes: Any) -> Profile:
    run, found = training(folder, kind, task, **changes), dict[str, Any]()
    with profiled(WARM_UP, found) as profiler:
        log = Steps(profiler)
        run(log)
    every = profiler.events()
    events = [*with_categories(in_steps(every))]
    return Profile(**found, losses=log.losses, all_events=every, events=events)


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
def test_each_event_of_a_step_has_a_category_and_their_times_add_up(
    tmp_path: Path, kind: str, task: str, precision: str
) -> None:
    found = profile_of(tmp_path, kind, task, precision=precision)
    assert list(found.parts) == list(CATEGORIES)
    assert sum(found.parts.values()) == pytest.approx(found.seconds, rel=1e-3)
    [step] = [event for event in found.all_events if event.name.startswith(STEP)]
    span = step.time_range
    inside = [
        event for event in found.all_events
        if event.thread == step.thread
        and span.start <= event.time_range.start <= event.time_range.end <= span.end
    ]  # fmt: skip
    assert Counter(event.id for event, _ in found.events) == Counter(event.id for event in inside)
    total = sum(event.self_cpu_time_total for event in inside)
    assert total == pytest.approx(span.elapsed_us(), rel=1e-6)
    assert {*CATEGORIES} >= found.counts.keys() >= {
        MATMULS, ATTENTION, NORMS, ACTIVATIONS, EMBEDDING, LOSS, OPTIMIZER, GRADIENT_NORM, COPIES,
        PYTHON,
    }  # fmt: skip
    for category, name in found.computing:  # other CPUs may use other loops
        assert category in OF_NAME.get(name, {*CATEGORIES} - {OTHER}), name


@pytest.mark.usefixtures("world")
def test_a_profile_changes_no_loss_and_restores_the_code(tmp_path: Path) -> None:
    before = nn.Module.__call__, simd.loaded_library
    found = profile_of(tmp_path / "profiled", "bert", "text-classification")
    assert (nn.Module.__call__, simd.loaded_library) == before
    plain = Steps()
    training(tmp_path / "plain", "bert", "text-classification")(plain)
    assert found.losses == plain.losses
    assert len(plain.losses) == steps_of(WARM_UP)


@dataclass(frozen=True)
class Sizes:
    """The sizes of a GPT-2 that decide how many operators a step has."""

    layers: int = 2
    dropout: float = 0.1
    vocabulary: int = VOCABULARY

    def profile(self, folder: Path) -> Profile:
        return profile_of(
            folder, "gpt2", "causal-lm", n_layer=self.layers, vocabulary=self.vocabulary,
            dropout=self.dropout,
        )  # fmt: skip

    def computing(self) -> Counter[tuple[str, str]]:
        """Return the expected number of operators by category and name."""
        tokens = BATCH * (BLOCK - 1)  # the first token of a block is not predicted
        chunks = math.ceil(tokens / cross_entropy.chunk_size(self.vocabulary))
        linear, norms = 4 * self.layers, 2 * self.layers + 1
        dropouts = 2 * self.layers + 1 if self.dropout else 0
        return +Counter({
            (MATMULS, "aten::addmm"): linear,
            # two gradients of each layer; logits and two gradients of each chunk of the loss, whose
            # gradients of the weight are added up
            (MATMULS, "aten::mm"): 2 * linear + 3 * chunks - (chunks - 1),
            (MATMULS, "aten::addmm_"): chunks - 1,
            (ATTENTION, "aten::bmm"): (2 + 2) * self.layers,
            (ATTENTION, "loop: softmax"): self.layers,
            (ATTENTION, "loop: softmax_backward"): self.layers,
            (ATTENTION, "loop: dropout"): self.layers if self.dropout else 0,
            (NORMS, "loop: norm"): norms,
            (NORMS, "loop: norm_backward"): norms,
            (ACTIVATIONS, "loop: tanh_gelu"): 2 * self.layers,
            (ACTIVATIONS, "loop: dropout"): 2 * dropouts,
            (EMBEDDING, "aten::embedding"): 2,
            (EMBEDDING, "aten::embedding_dense_backward"): 2,
            (LOSS, "loop: cross_entropy"): chunks,
            (OPTIMIZER, "loop: adamw"): 2,  # weights with and without decay
        })  # fmt: skip


@pytest.mark.needs("avx2", "compiler")
@pytest.mark.usefixtures("world")
@pytest.mark.parametrize(
    ("larger", "categories"),
    [
        (
            Sizes(layers=3),
            {MATMULS, ATTENTION, NORMS, ACTIVATIONS, COPIES, ADDITIONS, PYTHON, OTHER},
        ),
        (Sizes(dropout=0), {ACTIVATIONS, ATTENTION, PYTHON}),
        (Sizes(vocabulary=2 * VOCABULARY), {LOSS, MATMULS}),
    ],
    ids=["one more layer", "no dropout", "output layer twice as large"],
)
def test_events_of_a_part_of_the_model_count_in_its_category(
    tmp_path: Path, larger: Sizes, categories: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # the loss computes the logits of so many tokens at once
    monkeypatch.setattr(cross_entropy, "LOGITS", 32 * VOCABULARY)
    usual = Sizes()
    found, other = usual.profile(tmp_path / "usual"), larger.profile(tmp_path / "larger")
    assert found.computing == usual.computing()
    assert other.computing == larger.computing()
    changed = {name for name in CATEGORIES if other.counts[name] != found.counts[name]}
    assert changed == categories


@pytest.mark.usefixtures("world")
def test_two_trainings_have_the_same_events(tmp_path: Path) -> None:
    first, second = (Sizes().profile(tmp_path / name) for name in ("first", "second"))
    names = [[(event.name, category) for event, category in p.events] for p in (first, second)]
    assert names[0] == names[1]


def exchanges(rank: int, size: int, folder: Path) -> tuple[int, int]:
    """Return the number of a step's exchanges of gradients, and of its waits for other ranks."""
    world = World(rank, size, "gloo")
    found = profile_of(folder / f"run-{rank}", "gpt2", "causal-lm", world=world)
    counts = Counter((category, event.name) for event, category in found.events)
    return counts[ALL_REDUCE, PART + ALL_REDUCE], counts[WAITING, PART + WAITING]


@pytest.mark.usefixtures("world")
def test_several_ranks_exchange_their_gradients(tmp_path: Path) -> None:
    assert exchanges(0, 1, tmp_path / "alone") == (0, 1)
    # one exchange of the gradients of matrices, and one of all other gradients
    assert on_ranks(exchanges, 2, tmp_path, tmp_path) == [(2, 1), (2, 1)]


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
