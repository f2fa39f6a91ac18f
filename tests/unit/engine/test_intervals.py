import pytest

from ftcluster_common.recipe import Training
from ftcluster_train.engine.train_state import Intervals, warmup_steps, whole_steps

LAST, EPOCH = 25, 10  # two and a half epochs


@pytest.mark.parametrize(
    ("value", "steps", "whole"),
    [(0.1, 125, 13), (0.5, 10, 5), (0.001, 10, 1), (1, 10, 1), (1.0, 10, 1), (50.0, 10, 50)],
)
def test_a_share_is_rounded_up(value: float, steps: int, whole: int) -> None:
    assert whole_steps(value, steps) == whole


@pytest.mark.parametrize(
    ("changes", "steps"),
    [
        ({}, 0),
        ({"warmup_ratio": 0.1}, 13),
        ({"warmup_ratio": 1.0}, 125),
        ({"warmup_steps": 7.0}, 7),
        ({"warmup_steps": 0.1}, 13),
        ({"warmup_steps": 1.0}, 1),
    ],
)
def test_warm_up(changes: dict[str, float], steps: int) -> None:
    assert warmup_steps(Training(**changes), 125) == steps


@pytest.mark.parametrize(
    ("strategy", "interval", "due"),
    [
        ("no", 1, []),
        ("best", 1, []),
        ("epoch", 1, [10, 20, 25]),
        ("steps", 11.0, [11, 22, 25]),
        ("steps", 0.3, [8, 16, 24, 25]),
        ("steps", 500, [25]),
    ],
)
def test_when_an_action_is_due(strategy: str, interval: float, due: list[int]) -> None:
    training = Training(
        eval_strategy=strategy, eval_steps=interval,
        save_strategy=strategy, save_steps=interval,
    )  # fmt: skip
    intervals, steps = Intervals(training, EPOCH, LAST), range(1, LAST + 1)
    assert [step for step in steps if intervals.evaluates(step)] == due
    assert [step for step in steps if intervals.saves(step)] == due
