import pytest

from ftcluster_common.recipe import Training
from ftcluster_train.training.intervals import Cadence, steps_of, warmup_steps

STEPS, PER_EPOCH = 25, 10  # two epochs and a half
ALL = range(1, STEPS + 1)


def due(method: str, **changes: object) -> list[int]:
    cadence = Cadence(Training(**changes), STEPS, PER_EPOCH)
    return [step for step in ALL if getattr(cadence, method)(step)]


@pytest.mark.parametrize(
    ("value", "steps", "whole"),
    [(0.1, 125, 13), (0.5, 10, 5), (0.001, 10, 1), (1, 10, 1), (1.0, 10, 1), (50.0, 10, 50)],
)
def test_a_share_is_rounded_up(value: float, steps: int, whole: int) -> None:
    assert steps_of(value, steps) == whole


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
    ("changes", "steps"),
    [
        ({"logging_steps": 10.0}, [10, 20, 25]),
        ({"logging_steps": 10.0, "logging_first_step": True}, [1, 10, 20, 25]),
        ({"logging_steps": 0.2}, [5, 10, 15, 20, 25]),
        ({"logging_strategy": "epoch"}, [10, 20, 25]),
        ({"logging_strategy": "no"}, [25]),
        ({"logging_strategy": "no", "logging_first_step": True}, [1, 25]),
    ],
)
def test_progress(changes: dict[str, object], steps: list[int]) -> None:
    assert due("logs", **changes) == steps


@pytest.mark.parametrize(
    ("changes", "steps"),
    [
        ({}, [10, 20, 25]),
        ({"eval_strategy": "no"}, []),
        ({"eval_strategy": "steps", "eval_steps": 12.0}, [12, 24, 25]),
        ({"eval_strategy": "steps", "eval_steps": 0.3}, [8, 16, 24, 25]),
        ({"eval_strategy": "steps", "logging_steps": 20.0}, [20, 25]),
        ({"eval_strategy": "steps", "eval_steps": 500.0}, [25]),
    ],
)
def test_evaluations(changes: dict[str, object], steps: list[int]) -> None:
    assert due("evaluates", **changes) == steps


@pytest.mark.parametrize(
    ("changes", "steps"),
    [
        ({}, []),
        ({"save_strategy": "epoch"}, [10, 20, 25]),
        ({"save_strategy": "steps"}, [25]),  # every 500
        ({"save_strategy": "steps", "save_steps": 11.0}, [11, 22, 25]),
        ({"save_strategy": "steps", "save_steps": 0.5}, [13, 25]),
        ({"save_strategy": "best"}, []),
    ],
)
def test_checkpoints(changes: dict[str, object], steps: list[int]) -> None:
    assert due("saves", **changes) == steps


def test_only_the_strategy_best_goes_by_what_was_evaluated() -> None:
    best = Cadence(Training(save_strategy="best"), STEPS, PER_EPOCH)
    assert best.saves(3, improved=True)
    assert not best.saves(STEPS, improved=False)
    never = Cadence(Training(save_strategy="no"), STEPS, PER_EPOCH)
    assert not never.saves(3, improved=True)
