"""Rows are assigned to training, validation and prediction."""

import json
import random
import tracemalloc
from collections import Counter
from collections.abc import Callable, Set
from pathlib import Path

import pytest

from ftcluster_train.engine.data.sets import PartOfRows, choose_sets, draw_rows, values_of
from ftcluster_train.engine.data.splits import RowNumbers, rows_of_fold, sample, shared, split_rows
from ftcluster_train.errors import TrainError
from tests.unit.engine.data.split_cases import digest, divisions

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
    drawn = RowNumbers([4, 1, 4])
    assert (len(drawn), [*drawn], 4 in drawn, 7 in drawn) == (2, [1, 4], True, False)
    assert [row["x"] for row in PartOfRows(rows, drawn, True)] == [1, 4]
    assert [row["x"] for row in PartOfRows(rows, drawn, False)] == [0, 2, 3]


def test_each_recorded_set_has_the_same_rows() -> None:
    recorded = json.loads(Path(__file__).with_name("split_rows.json").read_text())
    assert {name: digest(numbers) for name, numbers in divisions()} == recorded


@pytest.mark.parametrize("total", [1, 20, 21, 22, 90, 1000, 5000])
def test_drawn_elements_are_those_of_the_standard_library(total: int) -> None:
    population = range(3, 3 + total)
    for count in {0, 1, 4, 5, 6, 7, 17, 21, 22, 80, 300, total}:
        if count <= total:
            theirs = random.Random(count).sample(population, count)
            assert [*sample(random.Random(count), population, count)] == theirs


@pytest.mark.parametrize(
    "draw",
    [
        lambda count: draw_rows((f"class {number % 3}" for number in range(count)), 1, 42),
        lambda count: draw_rows((0 for _ in range(count)), 50, 42),
        lambda count: split_rows(count, {"test": count // 3, "validation": count // 3}, 1)["test"],
        lambda count: rows_of_fold(bytes(count), False, 3, 1, 1, "class"),
    ],
    ids=["classes", "half", "sets", "fold"],
)
def test_drawing_rows_needs_few_bytes_for_each_row(draw: Callable[[int], Set[int]]) -> None:
    count = 200_000
    tracemalloc.start()
    try:
        assert count / 110 < len(draw(count)) <= count / 2
        _, peak = tracemalloc.get_traced_memory()
        assert peak < 18 * count
    finally:
        tracemalloc.stop()


def test_texts_of_rows_are_kept_once() -> None:
    rows = [{"group": f"a long name {number % 2}"} for number in range(100)]
    values = values_of(rows, "group", "train")
    assert values == [row["group"] for row in rows]
    assert len({*map(id, values)}) == 2
    assert len({*map(id, shared(f"{value}!" for value in values))}) == 2
