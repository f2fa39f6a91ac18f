import random

import pytest

from ftcluster_common.protocol.class_report import report_of_classes
from ftcluster_train.engine.tasks.classify.metrics import (
    accuracy,
    best_threshold,
    default_metrics,
    matthews,
    measure,
)


def test_accuracy_and_f1_of_a_known_table() -> None:
    predictions, labels = [1, 1, 1, 0, 0], [1, 1, 0, 1, 0]
    assert accuracy(predictions, labels) == pytest.approx(0.6)
    report = report_of_classes(predictions, labels, ["no", "yes"])
    found = measure(("f1", "f1_micro"), predictions, labels, report)
    assert found == {"f1": pytest.approx(2 / 3), "f1_micro": pytest.approx(0.6)}


def test_f1_without_any_positive_is_zero() -> None:
    report = report_of_classes([0], [0], ["no", "yes"])
    assert measure(("f1",), [0], [0], report) == {"f1": 0.0}


def test_f1_of_more_than_two_classes_is_none_of_theirs() -> None:
    with pytest.raises(KeyError, match="f1"):
        measure(("f1",), [0], [2], report_of_classes([0], [2], ["a", "b", "c"]))


def test_no_other_threshold_gives_a_better_f1() -> None:
    draw = random.Random(7)
    for _ in range(50):
        labels = [draw.random() < 0.3 for _ in range(20)]
        # values with ties
        values = [round(draw.random() * 0.7 + 0.3 * label, 2) for label in labels]

        def f1_at(limit: float) -> float:
            found = [value >= limit for value in values]  # noqa: B023
            right = sum(a and b for a, b in zip(found, labels, strict=True))  # noqa: B023
            return 2 * right / (sum(found) + sum(labels) or 1)  # noqa: B023

        assert f1_at(best_threshold(values, labels)) == max(map(f1_at, [0.5, *values]))


@pytest.mark.parametrize(
    ("predictions", "labels", "value"),  # expected values from scikit-learn 1.7
    [
        ([1, 0, 1, 1], [1, 1, 1, 0], -0.3333333333333333),
        ([0, 0, 1, 2, 2, 2], [0, 0, 1, 1, 2, 2], 0.7833494518006403),
        ([1, 0, 1], [1, 0, 1], 1.0),
        ([1, 1, 1], [1, 0, 1], 0.0),  # always the same class: undefined
    ],
)
def test_matthews(predictions: list[int], labels: list[int], value: float) -> None:
    assert matthews(predictions, labels) == pytest.approx(value)


def test_what_is_measured_where_the_recipe_does_not_say() -> None:
    assert default_metrics(2) == ("accuracy", "f1")
    assert default_metrics(3) == ("accuracy", "f1_macro")
    assert default_metrics(0) == ("pearson", "spearman")
    assert default_metrics(3, several=True) == ("f1_micro", "f1_macro")
    assert measure(("accuracy",), [2, 0], [2, 1]) == {"accuracy": 0.5}
