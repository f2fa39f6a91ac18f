"""The pairs of an epoch, which are as many as SetFit's without pairs of a row with itself."""

import pytest

from ftcluster_train.engine.tasks.few_shot.contrastive_pairs import contrastive_pairs

CLASSES = [0, 0, 0, 1, 1, 2]  # 4 pairs of equal classes, 11 of different ones


@pytest.mark.parametrize(
    ("strategy", "iterations", "counts"),
    [
        ("oversampling", None, (11, 11)), ("undersampling", None, (4, 4)),
        ("unique", None, (4, 11)), ("unique", 3, (18, 18)),
    ],
)  # fmt: skip
def test_the_numbers_of_pairs(
    strategy: str, iterations: int | None, counts: tuple[int, int]
) -> None:
    pairs = contrastive_pairs(CLASSES, strategy, iterations, seed=1)
    scores = [score for *_, score in pairs]
    assert (scores.count(1.0), scores.count(0.0)) == counts
    assert all((CLASSES[i] == CLASSES[j]) == bool(score) and i < j for i, j, score in pairs)
    assert len({*pairs}) == min(counts[0], 4) + min(counts[1], 11)  # each pair before a repetition
    assert pairs == contrastive_pairs(CLASSES, strategy, iterations, seed=1)
    assert pairs != contrastive_pairs(CLASSES, strategy, iterations, seed=2)
