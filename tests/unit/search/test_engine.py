"""The loop of every search: its questions to a strategy, and the results it passes on."""

import random

import optuna
import pytest

from ftcluster.search.engine import Listed, search
from ftcluster.search.space import Range, Settings, Values
from ftcluster.search.tpe import Tpe

AXES = [Values("batch_size", ("16", "32")), Range("learning_rate", 1e-5, 1e-3, False, True)]


def test_a_list_is_tried_once_and_at_once() -> None:
    batches: list[list[int]] = []

    def try_all(attempts: list[int]) -> list[None]:
        batches.append(list(attempts))
        return [None for _ in attempts]

    search(Listed([3, 1, 2]), try_all)
    search(Listed([]), try_all)
    assert batches == [[3, 1, 2]]


def test_what_has_no_result_yet_ends_a_search() -> None:
    told: list[object] = []

    class Endless:
        def ask(self) -> list[int]:
            return [len(told)]

        def tell(self, results: object) -> None:
            told.append(results)

    search(Endless(), lambda attempts: None if attempts == [3] else attempts)
    assert told == [[0], [1], [2]]


@pytest.mark.parametrize("at_once", [1, 3, 5])
@pytest.mark.parametrize("count", [1, 4, 15])
def test_tpe_asks_for_its_number_and_repeats_itself_until_it_is_told(
    at_once: int, count: int
) -> None:
    strategy, tried = Tpe(AXES, 7, count, at_once), list[Settings]()
    source = random.Random(1)
    while asked := strategy.ask():
        assert len(asked) == min(at_once, count - len(tried))
        assert strategy.ask() == asked
        tried += asked
        strategy.tell([source.choice([None, source.random()]) for _ in asked])
    assert len(tried) == count


def test_one_at_a_time_it_chooses_what_optuna_alone_would() -> None:
    def cost(settings: Settings) -> float:
        return abs(float(settings["learning_rate"]) - 1e-4) + int(settings["batch_size"])

    tried: list[Settings] = []

    def try_all(asked: list[Settings]) -> list[float]:
        tried.extend(asked)
        return [cost(one) for one in asked]

    search(Tpe(AXES, 3, 20), try_all)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=3))
    alone: list[Settings] = []

    def objective(trial: optuna.Trial) -> float:
        batch = trial.suggest_categorical("batch_size", ("16", "32"))
        rate = trial.suggest_float("learning_rate", 1e-5, 1e-3, log=True)
        alone.append({"batch_size": batch, "learning_rate": f"{float(f'{rate:.3g}'):g}"})
        return cost(alone[-1])

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study.optimize(objective, 20)
    assert tried == alone
