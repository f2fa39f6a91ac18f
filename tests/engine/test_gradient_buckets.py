"""Two ranks with half of each batch learn what one with the whole learns."""

import math

import pytest
import torch

from ftcluster_train.optim.gradient_buckets import BUCKET
from tests.engine.ranks import Case, Learned, learn, learn_all, on_ranks

STEPS = 5
WHOLE = [list(range(8 * step, 8 * step + 8)) for step in range(STEPS)]
# the last batch of an epoch may have fewer samples than there are ranks
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
    alone, shared = learn(Case(case.batches, dtype=case.dtype), 0, 1), of_ranks[0][name]
    exact = case.dtype == torch.float32
    assert shared.norms == pytest.approx(alone.norms, rel=1e-5 if exact else 0.02)
    apart = (shared.master_weights - alone.master_weights).abs()
    if exact:
        assert float(apart.max()) < 1e-6
    else:  # Adam's step is as long for a gradient that rounds to the other side of 0
        assert float(apart.mean()) < 1e-3


def test_small_buckets_are_many(of_ranks: list[dict[str, Learned]]) -> None:
    counts = {name: found.buckets for name, found in of_ranks[0].items()}
    elements = len(of_ranks[0]["halves"].master_weights)
    assert elements < BUCKET
    assert counts["halves"] == 2  # matrices and vectors
    assert counts["small buckets"] >= elements / 10_000
    assert counts["tiny buckets"] >= elements / 2000
