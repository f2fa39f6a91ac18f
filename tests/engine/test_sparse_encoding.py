"""Sparse encoders: sentence-transformers' losses, and vectors without the logits of all tokens."""

import copy
import json
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch

from ftcluster_common.tasks.sparse import SparseEncoding
from ftcluster_train.comm.world import World
from ftcluster_train.engine.progress import ProgressLog
from ftcluster_train.engine.tasks.embed.in_batch_negatives import BatchTexts
from ftcluster_train.engine.tasks.registry import make_task
from ftcluster_train.engine.tasks.sparse import splade_pooling
from ftcluster_train.engine.tasks.sparse.sparse_encoding import SparseEncodingTask
from ftcluster_train.engine.tasks.sparse.splade_pooling import pooled_logits, splade_vectors
from ftcluster_train.patching.patch_model import Optimizations, patch_model
from tests.engine.jobs import make_job
from tests.engine.models import make_model, make_tokenizer
from tests.engine.test_in_batch_negatives import ROWS, loss_of, sample

RECORDED = json.loads(Path(__file__).with_name("sentence_transformers.json").read_text())
TASK = "sparse-encoding"


@pytest.mark.parametrize("recorded", RECORDED["splade"], ids=["pairs", "negatives"])
def test_loss_and_gradients_are_those_of_sentence_transformers(
    tmp_path: Path, recorded: dict[str, Any]
) -> None:
    options = SparseEncoding(query_regularizer_weight=0.7, document_regularizer_weight=0.3)
    recipe = replace(make_job(tmp_path, TASK).recipe, options=options)
    task = make_task(recipe, make_tokenizer())
    used = RECORDED["columns"][: len(recorded["gradients"])]
    columns = [torch.tensor(column).relu().requires_grad_() for column in used]
    count, kinds = len(columns[0]), torch.tensor([0, 1, 2][: len(columns)])
    texts = BatchTexts(
        torch.arange(count * len(columns)), kinds.repeat(count), slice(0, 0),
        [count * len(columns)], torch.full((count,), torch.nan),
    )  # fmt: skip
    vectors = torch.stack(columns, dim=1).flatten(0, 1)
    parts = (slice(0, 2), slice(2, 2), slice(2, 6))  # of three ranks, one without a row
    losses = [task.batch_loss(vectors, texts._replace(rows=rows)) for rows in parts]
    total = torch.stack(losses).sum() / count
    assert total.item() == pytest.approx(recorded["loss"], rel=1e-6)
    total.backward()
    for column, gradients in zip(columns, recorded["gradients"], strict=True):
        assert torch.allclose(column.grad, torch.tensor(gradients), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("limit", [1, 7, 1000])
@pytest.mark.parametrize("with_bias", [True, False])
def test_vectors_and_gradients_do_not_depend_on_chunks(
    monkeypatch: pytest.MonkeyPatch, limit: int, with_bias: bool
) -> None:
    """The reference keeps all logits and lets torch differentiate, in fp64."""
    monkeypatch.setattr(splade_pooling, "chunk_size", lambda _: limit)
    monkeypatch.setattr(splade_pooling, "AT_ONCE", 5)
    torch.manual_seed(4)
    hidden, weight, bias = torch.randn(3, 6, 8), torch.randn(31, 8), torch.randn(31) - 2
    tokens = torch.tensor([[1, 1, 1, 1, 1, 1], [0, 0, 1, 1, 0, 0], [1, 1, 1, 0, 0, 0]])
    leaves = [hidden, weight, bias][: 3 if with_bias else 2]
    ours = [leaf.clone().requires_grad_() for leaf in leaves]
    exact = [leaf.double().requires_grad_() for leaf in leaves]
    vectors = splade_vectors(ours[0], tokens, ours[1], ours[2] if with_bias else None)
    logits = exact[0] @ exact[1].T + (exact[2] if with_bias else 0)
    largest = logits.masked_fill(tokens.unsqueeze(-1) == 0, -torch.inf).amax(1)
    wanted = torch.log1p(torch.relu(largest))
    assert torch.allclose(vectors.double(), wanted, atol=1e-6)
    assert torch.allclose(pooled_logits(logits, tokens).double(), wanted, atol=1e-6)
    assert 0.1 < (vectors == 0).float().mean() < 0.9
    factors = torch.randn(vectors.shape)
    (vectors * factors).sum().backward()
    (wanted * factors.double()).sum().backward()
    for leaf, reference in zip(ours, exact, strict=True):
        assert torch.allclose(leaf.grad.double(), reference.grad, atol=1e-5)


def test_a_step_keeps_no_logits_of_all_tokens() -> None:
    """The vectors of 64 texts of 32 tokens: all logits would be 32 times as large as the result."""
    hidden = torch.randn(64, 32, 4, requires_grad=True)
    weight = torch.randn(2000, 4, requires_grad=True)
    saved: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        vectors = splade_vectors(hidden, torch.ones(64, 32), weight, None)
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in saved}
    assert sum(storages.values()) < 4 * vectors.nbytes


def double_vectors(model: Any) -> torch.Tensor:
    """The vectors of the rows' texts by the definition, with a model in fp64, text by text."""
    vectors = []
    for number in chain.from_iterable(ROWS):
        logits = model(input_ids=torch.tensor([sample([number])["input_ids"]])).logits[0]
        vectors.append(torch.log1p(torch.relu(logits)).amax(0))
    return torch.stack(vectors)


@pytest.mark.parametrize("kind", ["bert", "distilbert", "modernbert"])
@pytest.mark.parametrize("parts", [1, 2])
def test_a_model_learns_what_it_learns_in_fp64(
    tmp_path: Path, world: World, kind: str, parts: int
) -> None:
    job = make_job(tmp_path, TASK)
    task = make_task(job.recipe, make_tokenizer())
    assert isinstance(task, SparseEncodingTask)
    task.sparse = SparseEncoding(query_regularizer_weight=0.01, document_regularizer_weight=0.02)
    model = make_model(kind, TASK, initializer_range=0.3).eval()
    exact = copy.deepcopy(model).double()
    task.check_model(model)
    rows = list(map(sample, ROWS))
    batches = [rows] if parts == 1 else [rows[:3], rows[3:]]
    kernels = patch_model(model, task, True, Optimizations(), ProgressLog())
    model.eval()
    assert task.head is not None
    loss, _ = loss_of(task, model, batches, world, kernels)
    kinds = torch.tensor([min(place, 2) for row in ROWS for place in range(len(row))])
    texts = BatchTexts(
        torch.tensor([*chain.from_iterable(ROWS)]), kinds, slice(0, 8), [len(kinds)],
        torch.full((8,), torch.nan),
    )  # fmt: skip
    wanted = task.batch_loss(double_vectors(exact), texts)
    assert loss == pytest.approx(wanted.item(), rel=1e-4)
    wanted.backward()
    right = {name: p.grad for name, p in exact.named_parameters() if p.grad is not None}
    norm = torch.stack([gradient.norm() for gradient in right.values()]).norm()
    for name, p in model.named_parameters():
        if name in right:
            assert torch.allclose(p.grad.double(), right[name], rtol=0, atol=1e-4 * norm), name
