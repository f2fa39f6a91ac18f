"""Rows are assigned to training, validation and prediction."""

import tracemalloc
from collections import Counter

import pytest

from ftcluster_train.engine.data.sets import PartOfRows, choose_sets, draw_rows, values_of
from ftcluster_train.engine.data.splits import shared
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


def test_drawing_rows_needs_few_bytes_for_each_row() -> None:
    count = 200_000
    tracemalloc.start()
    try:
        drawn = draw_rows((f"class {number % 3}" for number in range(count)), 1, 42)
        assert len(drawn) == pytest.approx(count / 100, abs=2)
        assert tracemalloc.get_traced_memory()[1] < 14 * count
    finally:
        tracemalloc.stop()


def test_texts_of_rows_are_kept_once() -> None:
    rows = [{"group": f"a long name {number % 2}"} for number in range(100)]
    values = values_of(rows, "group", "train")
    assert values == [row["group"] for row in rows]
    assert len({*map(id, values)}) == 2
    assert len({*map(id, shared(f"{value}!" for value in values))}) == 2
