"""The contrastive loss against its formula in fp64, on any number of ranks and parts."""

import contextlib
import copy
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn import functional
from transformers import PreTrainedModel

from ftcluster_common.tasks.embed import SentenceSimilarity
from ftcluster_train.comm.traffic import Traffic
from ftcluster_train.comm.world import World
from ftcluster_train.engine.data import sampler
from ftcluster_train.engine.data.sampler import micro_batches, share_of_rank
from ftcluster_train.engine.data.token_samples import Sample
from ftcluster_train.engine.models import call_model
from ftcluster_train.engine.progress import ProgressLog
from ftcluster_train.engine.step import StepBatch, make_step
from ftcluster_train.engine.step_times import StepTimes
from ftcluster_train.engine.tasks.base import Task
from ftcluster_train.engine.tasks.embed.in_batch_negatives import BatchTexts, ranking_loss
from ftcluster_train.engine.tasks.registry import make_task
from ftcluster_train.patching.batch_context import BatchContext
from ftcluster_train.patching.patch_model import Optimizations, patch_model
from tests.engine.jobs import make_job, make_task_of, run
from tests.engine.models import make_model, make_tokenizer
from tests.engine.ranks import on_ranks

# numbers of the texts: a query, its text, and texts that do not belong to it
ROWS = (
    (10, 20, 30),
    (11, 21),
    (12, 20, 31, 32),  # another query for the first row's text
    (11, 22),  # another text for the second row's query
    (13, 21, 23),  # its negative belongs to the last row, its text to the second one
    (24, 25, 20),  # its negative is the first row's text
    (14, 24),  # its text is the previous query
    (15, 23, 15),  # its negative is its query
)
UNIT = 2**-23  # roundoff of fp32


def formula(embeddings: dict[int, torch.Tensor], scale: float, symmetric: bool) -> torch.Tensor:
    """Return the sum of the rows' losses, computed element by element with log(sum(exp))."""

    def cosine(one: int, other: int) -> torch.Tensor:
        return functional.cosine_similarity(embeddings[one], embeddings[other], dim=0)

    def loss(right: torch.Tensor, wrong: Sequence[torch.Tensor]) -> torch.Tensor:
        scores = torch.stack([right, *wrong]) * scale
        return scores.exp().sum().log() - scores[0]

    total = torch.zeros((), dtype=torch.float64)
    for own, (query, text, *_) in enumerate(ROWS):
        others = [row for number, row in enumerate(ROWS) if number != own]
        negatives = [n for row in ROWS for n in row[2:]]
        negatives += [positive for asked, positive, *_ in others if asked != query]
        forward = loss(
            cosine(query, text), [cosine(query, n) for n in negatives if n not in (query, text)]
        )
        queries = [
            asked
            for asked, positive, *_ in others
            if positive != text and asked not in (query, text)
        ]
        backward = loss(cosine(query, text), [cosine(text, asked) for asked in queries])
        total = total + ((forward + backward) / 2 if symmetric else forward)
    return total


@pytest.fixture(autouse=True)
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler, "PASS_TOKENS", 8)
    monkeypatch.setattr(sampler, "SKIPPED_PADDING", 1)


@pytest.mark.parametrize("symmetric", [False, True])
def test_loss_and_gradients_are_those_of_the_formula(symmetric: bool) -> None:
    numbers = [number for row in ROWS for number in row]
    every = {number: torch.randn(16) for number in sorted(set(numbers))}
    ours = {number: one.clone().requires_grad_() for number, one in every.items()}
    theirs = {number: one.double().requires_grad_() for number, one in every.items()}
    kinds = torch.tensor([min(place, 2) for row in ROWS for place in range(len(row))])
    embeddings = functional.normalize(torch.stack([ours[n] for n in numbers]), dim=-1)
    texts = BatchTexts(
        torch.tensor(numbers), kinds, slice(0, 8), [len(numbers)], torch.full((8,), torch.nan)
    )
    parts = [
        ranking_loss(embeddings, texts._replace(rows=rows), 20.0, symmetric)
        for rows in (slice(0, 3), slice(3, 8))
    ]
    wanted = formula(theirs, 20.0, symmetric)
    assert sum(parts).item() == pytest.approx(wanted.item(), rel=64 * UNIT)  # type: ignore[union-attr]
    sum(parts).backward()  # type: ignore[union-attr]
    wanted.backward()
    for number, one in ours.items():
        assert torch.allclose(one.grad.double(), theirs[number].grad, rtol=0, atol=1e4 * UNIT)
    # an omitted text would change the loss
    all_differ = texts._replace(numbers=torch.arange(len(numbers)))
    other = ranking_loss(embeddings, all_differ, 20.0, symmetric)
    assert other.item() > wanted.item() * 1.05


def sample(row: Sequence[int]) -> Sample:
    """Return a row; the numbers determine the lengths and tokens of its texts."""
    tokens = [[2, *range(number, number + number % 7), number + 40, 3] for number in row]
    return {
        "input_ids": [token for text in tokens for token in text],
        "lengths": list(map(len, tokens)),
        "texts": list(row),
    }


class Gradients:
    """A stand-in for an optimizer that leaves the gradients in the parameters."""

    def __init__(self) -> None:
        self.traffic, self.context = Traffic(), BatchContext()
        self.lasts: list[bool] = []

    def backward(self, loss: torch.Tensor, last: bool) -> None:
        loss.backward()
        self.lasts.append(last)

    def step(self) -> float:
        return 0.0


def loss_of(
    task: Task, model: PreTrainedModel, parts: Sequence[Sequence[Sample]], world: World,
    kernels: Any = None, context: BatchContext | None = None,
) -> tuple[float, list[bool]]:  # fmt: skip
    """Return this rank's loss, and for each backward pass if it was the last."""
    optimizer = Gradients()
    optimizer.context = context or optimizer.context
    times = StepTimes(optimizer.traffic, world)
    kernels = kernels or contextlib.nullcontext()
    step = make_step(task, model, optimizer, kernels, times, bf16=False)  # type: ignore[arg-type]
    batch = StepBatch(1, 0, 0, [1], [], parts, dropout_seed=0)
    return step.run(batch).loss, optimizer.lasts


def gradients(
    rank: int, size: int, folder: Path, rows: Sequence[Sequence[int]], parts: int, symmetric: bool
) -> tuple[float, dict[str, torch.Tensor]]:
    """Return the loss and the gradients of a batch, summed over the ranks."""
    job = make_job(folder / str(rank), "sentence-similarity")
    task = make_task(job.recipe, make_tokenizer())
    task.options = SentenceSimilarity(symmetric=symmetric)  # type: ignore[attr-defined]
    model = make_model("bert", "sentence-similarity").eval()
    task.check_model(model)
    own = micro_batches(share_of_rank(range(len(rows)), rank, size), parts)
    batches = [[sample(rows[i]) for i in part] for part in own]
    loss, lasts = loss_of(task, model, batches, World(rank, size, "gloo"))
    assert lasts == [False] * (max(len(own), 1) - 1) + [True]
    found = {
        name: torch.zeros_like(p) if p.grad is None else p.grad
        for name, p in model.named_parameters()
    }
    sums = torch.cat([torch.tensor([loss]), *(one.flatten() for one in found.values())])
    dist.all_reduce(sums)
    total, *pieces = sums.split([1, *(one.numel() for one in found.values())])
    found = {name: piece.view_as(found[name]) for name, piece in zip(found, pieces, strict=True)}
    assert not found["pooler.dense.weight"].any()
    return total.item(), found


def cases(rank: int, size: int, folder: Path) -> list[Any]:
    # set here, because this may be another process
    sampler.PASS_TOKENS, sampler.SKIPPED_PADDING = 8, 1
    return [
        gradients(rank, size, folder / name, rows, parts, symmetric)
        for name, rows, parts, symmetric in (
            ("whole", ROWS, 1, False),
            ("parts", ROWS, 3, True),
            ("few", ROWS[:2], 2, False),  # a third rank has no rows
        )
    ]


@pytest.mark.usefixtures("world")
def test_any_number_of_ranks_and_parts_learns_the_same(tmp_path: Path) -> None:
    wanted = [
        gradients(0, 1, tmp_path, rows, 1, symmetric)
        for rows, symmetric in ((ROWS, False), (ROWS, True), (ROWS[:2], False))
    ]
    alone = cases(0, 1, tmp_path / "alone")
    for size in (2, 3):
        (tmp_path / str(size)).mkdir()
        for of_rank in (alone, *on_ranks(cases, size, tmp_path / str(size), tmp_path)):
            for (loss, found), (right, exact) in zip(of_rank, wanted, strict=True):
                assert loss == pytest.approx(right, rel=256 * UNIT)
                largest = max(one.abs().max() for one in exact.values())
                for name, one in exact.items():
                    assert torch.allclose(found[name], one, rtol=0, atol=1e3 * UNIT * largest), name


def trained(rank: int, size: int, folder: Path) -> list[dict[str, torch.Tensor]]:
    """Return the weights after some steps of trainings with a sharded optimizer and without.

    The second step of an epoch has one row, so one rank has no rows.
    """
    found = []
    for sharded in (False, True):
        job = make_job(
            folder / f"{size}-{rank}-{sharded}", "sentence-similarity", batch_size=len(ROWS) - 1,
            max_steps=4, gradient_accumulation_steps=2, learning_rate=1e-2, adam_epsilon=1e-3,
        )  # fmt: skip
        job = replace(job, shard_optimizer=sharded)
        task, model = make_task_of(job), make_model("bert", "sentence-similarity")
        task.check_model(model)
        done = run(job, model, list(map(sample, ROWS)), World(rank, size, "gloo"), task=task)
        found.append({name: p.detach().clone() for name, p in done.model.named_parameters()})
    return found


@pytest.mark.usefixtures("world")
def test_whole_trainings_on_ranks_end_with_the_same_weights(tmp_path: Path) -> None:
    start = dict(make_model("bert", "sentence-similarity").named_parameters())
    alone, _ = trained(0, 1, tmp_path)
    assert not torch.allclose(alone["encoder.layer.0.output.dense.weight"],
                              start["encoder.layer.0.output.dense.weight"], atol=1e-3)  # fmt: skip
    for weights in on_ranks(trained, 2, tmp_path, tmp_path)[0]:  # results of rank 0
        for name, one in alone.items():
            assert torch.allclose(weights[name], one, rtol=0, atol=1e-5), name


def double_loss(model: PreTrainedModel, pooling: str) -> torch.Tensor:
    """Compute the formula with the model in fp64, one text at a time."""
    embeddings = {}
    for row in ROWS:
        for number in row:
            ids = sample([number])["input_ids"]
            hidden = model(input_ids=torch.tensor([ids])).last_hidden_state[0]
            place = {"mean": slice(None), "cls": slice(1), "lasttoken": slice(-1, None)}[pooling]
            embeddings[number] = hidden[place].mean(0)
    return formula(embeddings, 20.0, False)


@pytest.mark.parametrize(
    ("kind", "pooling", "changes"),
    [
        ("bert", "mean", {}),
        ("bert", "cls", {}),
        ("llama", "lasttoken", {}),
        ("gemma3", "mean", {"use_bidirectional_attention": True}),
        ("gemma3", "lasttoken", {}),
    ],
)
def test_a_model_learns_what_it_learns_in_fp64(
    tmp_path: Path, world: World, kind: str, pooling: str, changes: dict[str, Any]
) -> None:
    job = make_job(tmp_path, "sentence-similarity")
    task = make_task(job.recipe, make_tokenizer())
    task.options = SentenceSimilarity(pooling=pooling)  # type: ignore[attr-defined, arg-type]
    # with usual weights all first vectors are nearly equal, so differences would be rounding errors
    model = make_model(kind, "sentence-similarity", initializer_range=0.3, **changes).eval()
    exact = copy.deepcopy(model).double()
    task.check_model(model)
    loss, _ = loss_of(task, model, [list(map(sample, ROWS))], world)
    wanted = double_loss(exact, pooling)
    assert loss == pytest.approx(wanted.item(), rel=1e-5)
    wanted.backward()
    norm = math.sqrt(
        sum(float(p.grad.norm() ** 2) for p in exact.parameters() if p.grad is not None)
    )
    right = dict(exact.named_parameters())
    for name, p in model.named_parameters():
        if p.grad is not None:
            assert torch.allclose(p.grad.double(), right[name].grad, rtol=0, atol=1e-5 * norm), name


@pytest.mark.needs("avx2", "compiler")
def test_one_pass_learns_what_groups_of_similar_length_learn(
    tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a model's layers skip padding, all texts of a batch are computed together."""
    rows = list(map(sample, ROWS))
    found = []
    for share, passes in ((1, 3), (1 / 128, 1)):
        monkeypatch.setattr(sampler, "SKIPPED_PADDING", share)
        job = make_job(tmp_path, "sentence-similarity")
        task = make_task(job.recipe, make_tokenizer())
        model = make_model("bert", "sentence-similarity", initializer_range=0.3).train()
        task.check_model(model)
        kernels = patch_model(model, task, True, Optimizations(), ProgressLog())
        groups, _ = task.group_texts(rows)  # type: ignore[attr-defined]
        assert len(groups) >= passes if passes > 1 else len(groups) == 1
        loss, _ = loss_of(task, model, [rows], world, kernels)
        found.append((loss, {n: p.grad for n, p in model.named_parameters()}))
    (loss, wanted), (own_loss, gradients) = found
    assert own_loss == pytest.approx(loss, rel=1e-5)
    for name, gradient in wanted.items():
        if gradient is not None:
            torch.testing.assert_close(gradients[name], gradient, rtol=1e-3, atol=1e-4, msg=name)


def test_texts_are_grouped_if_a_part_of_the_model_may_read_padding(tmp_path: Path) -> None:
    job = make_job(tmp_path, "sentence-similarity")
    task = make_task(job.recipe, make_tokenizer())
    model = make_model("bert", "sentence-similarity").train()
    task.check_model(model)
    model.encoder.layer[0].register_forward_hook(lambda *_: None)
    patch_model(model, task, True, Optimizations(), ProgressLog())
    sampler.SKIPPED_PADDING = 1 / 128  # `small_groups` sets it back
    groups, _ = task.group_texts(list(map(sample, ROWS)))  # type: ignore[attr-defined]
    assert len(groups) > 2


def test_parts_have_the_same_dropout_twice(tmp_path: Path, world: World) -> None:
    job = make_job(tmp_path, "sentence-similarity")
    task = make_task(job.recipe, make_tokenizer())
    model = make_model("bert", "sentence-similarity", dropout=0.2).train()
    task.check_model(model)
    kernels = patch_model(model, task, True, Optimizations(), ProgressLog())
    seen: list[torch.Tensor] = []
    model.register_forward_hook(
        lambda _model, _inputs, outputs: seen.append(outputs.last_hidden_state.detach().clone())
    )
    rows = list(map(sample, ROWS))
    loss_of(task, model, [rows[:4], rows[4:]], world, kernels)
    first, again = seen[: len(seen) // 2], seen[len(seen) // 2 :]
    assert len(first) == len(again) > 2  # the groups of lengths
    assert all(torch.equal(*pair) for pair in zip(first, again, strict=True))
    for _ in range(2):
        call_model(model, task.collate([{"input_ids": [2, 5, 3]}]).inputs)
    assert not torch.equal(seen[-1], seen[-2])
