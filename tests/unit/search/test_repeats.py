"""Chance between settings with several seeds, on R's data sets `sleep` and `PlantGrowth`.

R's t.test without var.equal, which is Welch's test, reports the p-values beside each case.
"""

import math
import statistics
from collections.abc import Sequence

import pytest

from ftcluster.operations.search.sweep_result import SweepResult
from ftcluster.search.repeats import RepeatedSetting, may_be_chance
from ftcluster.search.rows import Aim, SweepRun

# Student, The probable error of a mean, Biometrika 6 (1908): hours of additional sleep
DRUG_1 = [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0]
DRUG_2 = [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4]
# Dobson, An Introduction to Statistical Modelling (1983): dried weight of plants
CONTROL = [4.17, 5.58, 5.18, 6.11, 4.50, 4.61, 5.17, 4.53, 5.33, 5.14]
TREATMENT_1 = [4.81, 4.17, 4.41, 3.59, 5.87, 3.83, 6.03, 4.89, 4.32, 4.69]
TREATMENT_2 = [6.31, 5.12, 5.54, 5.50, 5.37, 5.29, 4.92, 6.15, 5.80, 5.26]


def setting(values: Sequence[float]) -> RepeatedSetting:
    return RepeatedSetting({}, [], values)


@pytest.mark.parametrize(
    ("first", "second", "chance"),
    [
        (DRUG_1, DRUG_2, True),  # p = 0.079
        (CONTROL, TREATMENT_1, True),  # p = 0.250
        (CONTROL, TREATMENT_2, False),  # p = 0.048
        (TREATMENT_1, TREATMENT_2, False),  # p = 0.009
        (CONTROL, CONTROL, True),
        (CONTROL, [5.0], None),
        ([0.9, 0.9], [0.8, 0.8], False),
        ([0.9, 0.9], [0.9, 0.9], True),
    ],
)
def test_welchs_test(first: list[float], second: list[float], chance: bool | None) -> None:
    assert may_be_chance(setting(first), setting(second)) is chance
    assert may_be_chance(setting(second), setting(first)) is chance


def runs(rate: str, values: Sequence[float]) -> list[SweepRun]:
    return [
        SweepRun(
            {"learning_rate": rate, "seed": str(seed)},
            run=f"{rate}-{seed}",
            state="done",
            metrics={"eval_accuracy": value},
        )
        for seed, value in enumerate(values)
    ]


def test_the_best_mean_wins_not_the_luckiest_run() -> None:
    steady, lucky = [0.84, 0.85, 0.86], [0.70, 0.95, 0.71]
    result = SweepResult([*runs("1e-5", lucky), *runs("2e-5", steady)], Aim("accuracy"))
    best = result.best
    assert best is not None
    assert best.run == "2e-5-2"
    document = result.document()
    assert document["best_may_be_chance"] is True
    first, second = document["settings"]
    assert first["settings"] == {"learning_rate": "2e-5"}
    assert first["runs"] == ["2e-5-2", "2e-5-1", "2e-5-0"]
    assert first["mean"] == pytest.approx(0.85)
    assert math.isclose(second["deviation"], statistics.stdev(lucky))
    text = "\n".join(result.lines())
    assert "learning_rate=1e-5 may be due to chance" in text
    assert "0.85" in text


def test_a_clear_difference_is_not_doubted() -> None:
    rows = [*runs("1e-5", [0.70, 0.71, 0.72]), *runs("2e-5", [0.84, 0.85, 0.86])]
    result = SweepResult(rows, Aim("accuracy"))
    assert result.best_may_be_chance is False
    assert "chance" not in "\n".join(result.lines())


def test_folds_are_repeats_and_have_the_spread_of_each_metric() -> None:
    rows = [
        SweepRun(
            {"batch_size": size, "fold": str(fold)}, state="done",
            metrics={"loss": -value, "accuracy": value, **({"test_f1": 1.0} if fold else {})},
        )
        for size, values in (("8", CONTROL[:5]), ("16", TREATMENT_2[:5]))
        for fold, value in enumerate(values)
    ]  # fmt: skip
    document = SweepResult(rows, Aim("accuracy")).document()
    first, second = document["settings"]
    assert first["settings"] == {"batch_size": "16"}
    for setting, values in ((first, TREATMENT_2[:5]), (second, CONTROL[:5])):
        assert setting["metrics"].keys() == {"loss", "accuracy"}  # a fold lacks test_f1
        spread = setting["metrics"]["accuracy"]
        assert spread == pytest.approx(
            {"mean": statistics.mean(values), "deviation": statistics.stdev(values)}
        )
        assert setting["metrics"]["loss"]["mean"] == pytest.approx(-spread["mean"])


def test_seeds_alone_are_repeats_of_one_setting() -> None:
    rows = [
        SweepRun({"training.seed": str(seed)}, state="done", metrics={"loss": value})
        for seed, value in enumerate([0.3, 0.2, 0.4])
    ]
    result = SweepResult(rows, Aim("loss"))
    assert result.best is rows[1]
    assert result.best_may_be_chance is None
    [line] = [line for line in result.lines() if line.startswith("0.3 ")]
    assert line.split() == ["0.3", "0.1", "3"]
