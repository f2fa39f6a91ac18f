import math

import pytest

from ftcluster_train.engine.tasks.embed.metrics import retrieval_metrics


def test_metrics_of_three_queries() -> None:
    found = [
        [7, 1, 2],  # the only relevant text is first
        [1, 8, 9],  # two relevant texts, second and third
        [*range(10, 20), 4],  # behind the tenth place
    ]
    metrics = retrieval_metrics(found, [[7], [8, 9], [4]])
    second = (1 / math.log2(3) + 1 / 2) / (1 + 1 / math.log2(3))
    assert metrics == {
        "ndcg_at_10": pytest.approx((1 + second) / 3),
        "mrr_at_10": pytest.approx((1 + 0.5) / 3),
        "accuracy_at_1": pytest.approx(1 / 3),
    }


def test_more_texts_than_places_are_all_right() -> None:
    assert set(retrieval_metrics([range(10)], [range(15)]).values()) == {1.0}
