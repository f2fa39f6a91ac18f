import pytest

from ftcluster_train.metrics import classification_metrics, count_predictions


def test_accuracy_and_f1_of_a_known_table() -> None:
    counts = count_predictions([1, 1, 1, 0, 0], [1, 1, 0, 1, 0])
    assert counts == [5, 3, 2, 1, 1]
    assert classification_metrics(counts, 2) == pytest.approx({"accuracy": 0.6, "f1": 2 / 3})


def test_counts_of_ranks_add_up_to_those_of_all() -> None:
    predictions, labels = [1, 0, 1, 1, 0, 0, 1], [1, 1, 1, 0, 0, 1, 1]
    parts = [count_predictions(predictions[r::2], labels[r::2]) for r in range(2)]
    total = [a + b for a, b in zip(*parts, strict=True)]
    assert total == count_predictions(predictions, labels)


def test_f1_without_any_positive_is_zero_and_needs_two_classes() -> None:
    assert classification_metrics(count_predictions([0], [0]), 2) == {"accuracy": 1.0, "f1": 0.0}
    assert classification_metrics(count_predictions([2], [2]), 3) == {"accuracy": 1.0}
