import math

import pytest

from ftcluster_train.engine.metrics import pearson, perplexity, ranks, spearman


def test_correlations_with_ties() -> None:
    x = [4.2, 0.5, 3.1, 2.0, 5.0, 2.0, 1.5]
    y = [4.0, 1.0, 3.0, 2.5, 4.75, 1.0, 2.5]
    assert pearson(x, y) == pytest.approx(0.9094172768277455)  # result of scipy 1.16
    assert spearman(x, y) == pytest.approx(0.8807710121010887)
    assert pearson([1.0, 1.0], [0.0, 2.0]) == 0.0
    assert ranks([10.0, 30.0, 10.0, 20.0]) == [1.5, 4.0, 1.5, 3.0]


def test_perplexity_is_a_number_whatever_the_loss() -> None:
    assert perplexity(math.log(50257)) == pytest.approx(50257)
    assert math.isfinite(perplexity(1e6))
