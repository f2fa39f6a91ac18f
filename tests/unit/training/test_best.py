import math

import pytest

from ftcluster_common.recipe import Training
from ftcluster_train.errors import TrainError
from ftcluster_train.training.best import Best


def test_the_loss_where_there_is_one_and_the_smaller_the_better() -> None:
    best = Best(Training())
    assert best.update({"perplexity": 8.0, "loss": 2.0}, 10)
    assert not best.update({"perplexity": 9.0, "loss": 2.5}, 20)
    assert best.update({"perplexity": 9.0, "loss": 1.5}, 30)
    assert (best.metric, best.value, best.step) == ("loss", 1.5, 30)


def test_otherwise_the_tasks_first_metric_and_the_greater_the_better() -> None:
    best = Best(Training())
    found = [best.update({"accuracy": value, "f1": -value}, 1) for value in (0.5, 0.4, 0.6)]
    assert found == [True, False, True]
    assert best.metric == "accuracy"


@pytest.mark.parametrize("name", ["f1", "eval_f1"])
def test_a_metric_by_name_with_and_without_transformers_prefix(name: str) -> None:
    best = Best(Training(metric_for_best_model=name))
    assert best.update({"accuracy": 0.9, "f1": 0.1}, 1)
    assert best.update({"eval_accuracy": 0.8, "eval_f1": 0.2}, 2)
    assert best.value == 0.2


def test_what_is_better_can_be_said() -> None:
    best = Best(Training(metric_for_best_model="perplexity", greater_is_better=False))
    assert [best.update({"perplexity": value}, 1) for value in (9.0, 8.0, 10.0)] == [
        True, True, False,
    ]  # fmt: skip


def test_a_tie_is_not_better_and_neither_is_what_is_no_number() -> None:
    best = Best(Training(metric_for_best_model="f1"))
    assert not best.update({"f1": math.nan}, 1)
    assert best.step is None
    assert best.update({"f1": 0.5}, 2)
    assert not best.update({"f1": 0.5}, 3)
    assert not best.update({"f1": math.nan}, 4)
    assert best.step == 2


def test_a_metric_that_is_not_there_names_those_that_are() -> None:
    with pytest.raises(TrainError) as caught:
        Best(Training(metric_for_best_model="bleu")).update({"accuracy": 1.0, "f1": 1.0}, 1)
    assert "'bleu'" in caught.value.message
    assert "accuracy, f1" in caught.value.message
    assert "training.metric_for_best_model" in caught.value.hint
