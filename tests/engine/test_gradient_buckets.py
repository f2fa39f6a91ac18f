"""Two ranks with half of each batch learn the same as one rank with the whole batch."""

import gc
import math
import weakref
from pathlib import Path

import pytest
import torch

from ftcluster_train.engine.optim import gradient_buckets
from ftcluster_train.engine.optim.flat_params import FlatWeights
from ftcluster_train.engine.optim.gradient_buckets import (
    BUCKET,
    FP32_PER_MIB,
    GradientBuckets,
    bucket_slices,
)
from ftcluster_train.patching import fp32_residuals
from ftcluster_train.patching.batch_context import BatchContext
from tests.engine.ranks import Case, Learned, learn, learn_all, on_ranks

STEPS = 5
WHOLE = [list(range(8 * step, 8 * step + 8)) for step in range(STEPS)]
# the last batch of an epoch may have fewer samples than ranks
ONE_LEFT = [*WHOLE[:2], [40], WHOLE[2], [41], WHOLE[3]]
ODD = [batch[:7] for batch in WHOLE]
CASES = {
    "halves": Case(WHOLE),
    "a rank without a sample": Case(ONE_LEFT),
    "unequal shares": Case(ODD),
    "parts": Case(ODD, parts=3),
    "parts where a rank has none": Case(ONE_LEFT, parts=2),
    "small buckets": Case(WHOLE, bucket=10_000),
    "tiny buckets": Case(ONE_LEFT, bucket=2000, parts=2),
    "one rank uses a layer more": Case(WHOLE, bucket=10_000, parts=2, unused=True),
    "bf16": Case(WHOLE, dtype=torch.bfloat16),
    "rows in fp32": Case(ODD, bucket=2000, parts=2, rows=True),
    "rows": Case(ODD, bucket=2000, parts=2, dtype=torch.bfloat16, rows=True),
    "rows where a rank has none": Case(ONE_LEFT, dtype=torch.bfloat16, rows=True),
    "rows in bf16": Case(ODD, dtype=torch.bfloat16, rows=True, sent="bf16"),
}


@pytest.fixture(scope="module")
def of_ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Learned]]:
    return on_ranks(learn_all, 2, tmp_path_factory.mktemp("ranks"), CASES)


@pytest.mark.parametrize("name", CASES)
def test_ranks_are_equal(of_ranks: list[dict[str, Learned]], name: str) -> None:
    one, other = (found[name] for found in of_ranks)
    assert one.digest == other.digest
    assert one.norms == other.norms
    assert all(math.isfinite(norm) for norm in one.norms)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if not case.unused])
def test_ranks_learn_what_one_learns(of_ranks: list[dict[str, Learned]], name: str) -> None:
    case = CASES[name]
    alone = learn(Case(case.batches, dtype=case.dtype, rows=case.rows), 0, 1)
    shared = of_ranks[0][name]
    exact = case.dtype == torch.float32
    assert shared.norms == pytest.approx(alone.norms, rel=1e-5 if exact else 0.02)
    apart = (shared.master_weights - alone.master_weights).abs()
    if exact:
        assert float(apart.max()) < 1e-6
    else:  # Adam's step has the same size for a gradient that rounds to the other side of 0
        assert float(apart.mean()) < 1e-3


def test_small_buckets_are_many(of_ranks: list[dict[str, Learned]]) -> None:
    counts = {name: found.buckets for name, found in of_ranks[0].items()}
    elements = len(of_ranks[0]["halves"].master_weights)
    assert elements < BUCKET
    assert counts["halves"] == 2  # matrices and vectors
    assert counts["small buckets"] >= elements / 10_000
    assert counts["tiny buckets"] >= elements / 2000


ROWS, WIDTH = 50, 4
# the rows in each rank's batch, or None for gradients of all rows; and True if only rows are sent
BATCHES: list[tuple[list[list[int] | None], bool]] = [
    ([[3, 7], [7, 20, 49]], True),
    ([[], [1]], True),
    ([[], []], True),
    ([[5], list(range(ROWS))], False),
    ([[5], None], False),
    ([None, None], False),
    ([[8, 9], [0]], True),
    ([[9], [2]], True),
]


def test_a_model_is_freed_with_what_takes_its_gradients() -> None:
    model = torch.nn.Linear(3, 2)
    buckets = GradientBuckets(FlatWeights(model, torch.float32), 1)
    buckets.start_backward(last=True)
    model(torch.ones(1, 3)).sum().backward()
    assert buckets.wait().any()
    left = [weakref.ref(one) for one in (model, model.weight, buckets, buckets.flat)]
    del model, buckets
    gc.collect()
    assert [one() for one in left] == [None] * 4


def _sum_a_table(rank: int, size: int, dtype: torch.dtype) -> list[tuple[torch.Tensor, float]]:
    """Return the summed gradients of an embedding and the sent bytes, for each of BATCHES."""
    gradient_buckets.TABLE, fp32_residuals.MANY_ELEMENTS = ROWS * WIDTH, 0
    model = torch.nn.Sequential(torch.nn.Embedding(ROWS, WIDTH), torch.nn.Linear(WIDTH, 2))
    buckets = GradientBuckets(FlatWeights(model, dtype), size)
    table, place = model[0].weight, slice(0, ROWS * WIDTH)
    found = []
    for batch, _ in BATCHES:
        rows, sent = batch[rank], buckets.traffic.sent
        buckets.start_backward(last=True)
        loss = model[1].weight.sum() + model[1].bias.sum()
        if rows is None:
            loss = loss + table.sum()
        else:
            tokens = torch.tensor(rows, dtype=torch.int64)
            with BatchContext(sinks=buckets.sinks):
                loss = loss + 2 * fp32_residuals.EMBEDDING.function()(tokens, table).sum()
        loss.backward()
        summed = buckets.wait()[place].view(ROWS, WIDTH).clone()
        found.append((summed, buckets.traffic.sent - sent))
    return found


def sum_of(of_ranks: list[list[int] | None]) -> torch.Tensor:
    expected = torch.zeros(ROWS, WIDTH)
    for rows in of_ranks:
        if rows is None:
            expected += 1
        else:
            expected[rows] += 2
    return expected


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_table_is_summed_by_rows_where_these_are_few(tmp_path: Path, dtype: torch.dtype) -> None:
    one, other = on_ranks(_sum_a_table, 2, tmp_path, dtype)
    whole = 4 * ROWS * WIDTH
    for (of_ranks, by_rows), (summed, sent), (same, _) in zip(BATCHES, one, other, strict=True):
        assert torch.equal(summed, sum_of(of_ranks))
        assert torch.equal(same, sum_of(of_ranks))
        assert (sent < whole) == by_rows


@pytest.mark.usefixtures("world")
def test_a_table_of_one_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in ((gradient_buckets, "TABLE"), (fp32_residuals, "MANY_ELEMENTS")):
        monkeypatch.setattr(module, name, getattr(module, name))  # restore the value afterwards
    found = _sum_a_table(0, 1, torch.bfloat16)
    for (of_ranks, _), (summed, _) in zip(BATCHES, found, strict=True):
        assert torch.equal(summed, sum_of(of_ranks[:1]))


def test_buckets_of_a_given_size() -> None:
    end = 5 * FP32_PER_MIB // 2
    assert [part.stop - part.start for part in bucket_slices(end, end, bucket_mb=1)] == [
        FP32_PER_MIB // 2, FP32_PER_MIB, FP32_PER_MIB,
    ]  # fmt: skip
    assert bucket_slices(end, end) == [slice(0, end)]
