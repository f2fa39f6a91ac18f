"""Rows are assigned to training, validation and prediction."""

from collections import Counter

import pytest

from ftcluster_train.engine.data.sets import PartOfRows, choose_sets, draw_rows
from ftcluster_train.errors import TrainError

A, B, C = [{"x": 1}], [{"x": 2}], [{"x": 3}]
ALL = {"train": A, "validation": B, "test": C}


def test_the_sets_of_each_purpose() -> None:
    assert choose_sets(ALL, "train", ("validation",), "d") == {"train": A, "validation": B}
    assert choose_sets({"train": A}, "train", ("validation",), "d") == {"train": A}
    assert choose_sets(ALL, "evaluate", ("test",), "d") == {"test": C}
    assert choose_sets({"train": A}, "evaluate", ("validation",), "d") == {"validation": A}
    assert choose_sets(ALL, "predict", ("validation",), "d") == {"predict": C}
    assert choose_sets({"train": A}, "predict", ("validation",), "d") == {"predict": A}


def test_sets_that_the_data_do_not_have() -> None:
    with pytest.raises(TrainError, match="no split validation_matched; found train"):
        choose_sets({"train": A}, "train", ("validation_matched",), "d")
    with pytest.raises(TrainError, match="no split train; found validation"):
        choose_sets({"validation": B}, "train", ("validation",), "d")
    with pytest.raises(TrainError, match="several sets: train, validation"):
        choose_sets({"train": A, "validation": B}, "predict", ("validation",), "d")


def test_rows_for_validation_are_of_each_class_and_the_same_each_time() -> None:
    classes = ["a"] * 80 + ["b"] * 19 + ["c"]
    drawn = draw_rows(classes, 10, 42)
    assert Counter(classes[number] for number in drawn) == {"a": 8, "b": 2}
    assert drawn == draw_rows(classes, 10, 42) != draw_rows(classes, 10, 43)
    assert len(draw_rows(["a", "a", "b", "b"], 1, 0)) == 2
    with pytest.raises(TrainError, match="the data have 2 rows and no set validation"):
        draw_rows(["a", "b"], 10, 0)


def test_both_parts_have_all_rows() -> None:
    rows = [{"x": number} for number in range(5)]
    drawn = frozenset({1, 4})
    assert [row["x"] for row in PartOfRows(rows, drawn, True)] == [1, 4]
    assert [row["x"] for row in PartOfRows(rows, drawn, False)] == [0, 2, 3]
