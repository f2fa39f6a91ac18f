import math

import pytest

from ftcluster_common.recipe import Training
from ftcluster_train.engine.train_state import TrainState
from ftcluster_train.errors import TrainError

NAN = math.nan


@pytest.mark.parametrize(
    ("changes", "evaluations", "metric", "best"),
    [
        # the loss by default if there is one; smaller is better
        ({}, [{"perplexity": 9.0 - x, "loss": x} for x in (2.0, 2.5, 1.5)], "loss", 3),
        # otherwise the task's first metric; greater is better
        ({}, [{"accuracy": x, "f1": -x} for x in (0.5, 0.6, 0.4)], "accuracy", 2),
        ({"metric_for_best_model": "f1"}, [{"accuracy": -x, "f1": x} for x in (1, 2)], "f1", 2),
        # with the prefix of transformers
        ({"metric_for_best_model": "eval_f1"}, [{"f1": 0.1}, {"eval_f1": 0.2}], "f1", 2),
        # metrics of MNLI's two validation sets
        (
            {"metric_for_best_model": "loss_matched"},
            [{"loss_matched": x} for x in (2, 1, 3)],
            "loss_matched",
            2,
        ),
        ({"greater_is_better": False}, [{"f1": x} for x in (9.0, 8.0, 10.0)], "f1", 2),
        # neither a tie nor NaN is better
        ({}, [{"f1": x} for x in (NAN, 0.5, 0.5, NAN)], "f1", 2),
        ({}, [{"f1": NAN}], "f1", None),
    ],
)
def test_the_best_evaluation(
    changes: dict[str, object], evaluations: list[dict[str, float]], metric: str, best: int | None
) -> None:
    state, improved = TrainState(), []
    for state.step, state.metrics in enumerate(evaluations, 1):
        if state.update_best(Training(**changes)):
            improved.append(state.step)
    assert (state.best_metric, state.best_step) == (metric, best)
    assert improved[-1:] == ([best] if best else [])


def test_an_unknown_metric_is_an_error_that_names_the_others() -> None:
    state = TrainState(metrics={"accuracy": 1, "f1": 1})
    with pytest.raises(TrainError, match=r"'bleu'.*accuracy, f1"):
        state.update_best(Training(metric_for_best_model="bleu"))
