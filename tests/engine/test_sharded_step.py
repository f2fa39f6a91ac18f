"""An optimizer sharded over one, two or three ranks learns the same as an unsharded one."""

from dataclasses import replace

import pytest
import torch

from tests.engine.ranks import Case, Learned, learn_all, on_ranks

STEPS = 8
WHOLE = [[(9 * step + i) % 64 for i in range(9)] for step in range(STEPS)]
ODD = [batch[:7] for batch in WHOLE]
ONE_LEFT = [*ODD[:3], [40], *ODD[3:5], [41, 42], *ODD[5:]]
CASES = {
    "fp32": Case(WHOLE, bucket=10_000),
    "parts where a rank has none": Case(ONE_LEFT, parts=3),
    "parts": Case(ODD, bucket=10_000, parts=2),
    "tiny buckets": Case(ODD, bucket=1000),
    "one rank uses a layer more": Case(ODD, bucket=10_000, unused=True),
    "frozen": Case(ODD, bucket=10_000, frozen=True),
    "rows": Case(ODD, bucket=1000, parts=2, rows=True),
    "bf16": Case(WHOLE, bucket=10_000, dtype=torch.bfloat16),
    "bf16 in parts": Case(ONE_LEFT, parts=2, dtype=torch.bfloat16),
    "bf16 on the wire": Case(ODD, bucket=10_000, parts=2, sent="bf16"),
}
CASES = {name: replace(case, sharded=True) for name, case in CASES.items()}
OF_SIZE = {
    1: ["fp32", "bf16"],
    2: list(CASES),
    3: ["parts where a rank has none", "tiny buckets", "bf16 in parts"],
}
ALL = [(size, name) for size, names in OF_SIZE.items() for name in names]


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[int, str], list[Learned]]:
    """Return the state of each rank by case; `unsharded CASE` has no shards."""
    found = {}
    for size, names in OF_SIZE.items():
        cases = {name: CASES[name] for name in names}
        cases |= {f"unsharded {name}": replace(CASES[name], sharded=False) for name in names}
        of_ranks = on_ranks(learn_all, size, tmp_path_factory.mktemp("ranks"), cases)
        found |= {(size, name): [of_rank[name] for of_rank in of_ranks] for name in cases}
    return found


@pytest.mark.parametrize(("size", "name"), ALL)
def test_it_is_the_unsharded_step_to_rounding(
    learned: dict[tuple[int, str], list[Learned]], size: int, name: str
) -> None:
    rounded = "bf16" in name
    of_ranks, theirs = learned[size, name], learned[size, f"unsharded {name}"][0]
    assert len({found.digest for found in of_ranks}) == 1
    assert len({tuple(found.norms) for found in of_ranks}) == 1
    for rank, ours in enumerate(of_ranks):
        unsharded = learned[size, f"unsharded {name}"][rank]
        assert ours.norms == pytest.approx(theirs.norms, rel=1e-2 if rounded else 1e-5)
        assert ours.losses == pytest.approx(unsharded.losses, rel=1e-3 if rounded else 1e-5)
        assert ours.tensors.keys() == theirs.tensors.keys()
        for tensor, values in ours.tensors.items():
            apart = (values - theirs.tensors[tensor]).abs()
            assert values.shape == theirs.tensors[tensor].shape
            if rounded:
                assert float(apart.mean()) < 1e-4, tensor
            else:
                assert float(apart.max()) < 2e-6, tensor


@pytest.mark.parametrize(("size", "name"), ALL)
def test_a_rank_has_its_part_of_the_state(
    learned: dict[tuple[int, str], list[Learned]], size: int, name: str
) -> None:
    for found in learned[size, name]:
        whole = sum(tensor.nbytes for tensor in found.tensors.values())
        assert whole / size <= found.own_bytes < whole / size + 3000 * size


def test_there_are_few_buffers_for_many_buckets(
    learned: dict[tuple[int, str], list[Learned]],
) -> None:
    """Few buffers are used even if no loss depends on the layer of the first gradients."""
    for size in (2, 3):
        found = learned[size, "tiny buckets"][0]
        assert found.buckets > 25
        assert found.buffers < 20
