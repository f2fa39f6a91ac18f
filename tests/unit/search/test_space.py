"""The values that a sweep tries."""

from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from ftcluster.errors import UsageError
from ftcluster.recipe.recipe import all_fields
from ftcluster.search.space import Range, Values, _parts, axes_of, combinations, drawn

KEYS = all_fields()
PLAIN = st.text("abc019.-_/ ", min_size=1, max_size=6).filter(lambda text: bool(text.strip()))
ITEM = PLAIN | st.lists(PLAIN, min_size=1, max_size=3).map(lambda items: f"[{', '.join(items)}]")
ITEM |= PLAIN.map(lambda text: f'"{text}, {text}"') | PLAIN.map(lambda text: f"{{a: '{text},]'}}")


@settings(max_examples=50)
@given(st.lists(ITEM, min_size=1, max_size=5))
def test_values_are_those_of_a_list_in_yaml(items: list[str]) -> None:
    text = ",".join(items)
    try:
        meant = yaml.safe_load(f"[{text}]")
    except (yaml.YAMLError, ValueError):  # for example `- `, or a month 0
        return
    assert [yaml.safe_load(f"[{part}]")[0] for part in _parts(text)] == meant


def test_a_list_that_a_field_takes_is_one_value() -> None:
    words = ["mrpc", "metrics=accuracy,f1", "learning_rate=1e-5,2e-5", "training.seed=1,1,2"]
    fixed, axes = axes_of(words, KEYS)
    assert fixed == ["mrpc", "metrics=accuracy,f1"]
    assert axes == [Values("learning_rate", ("1e-5", "2e-5")), Values("training.seed", ("1", "2"))]
    assert [one["training.seed"] for one in combinations(axes)] == ["1", "2", "1", "2"]
    data = "data=generated:train=160,validation=40,seed=1"
    assert axes_of([data, "data_config=null"], KEYS) == ([data, "data_config=null"], [])
    [several] = axes_of(["metrics=[accuracy,f1],[f1]"], KEYS)[1]
    assert several == Values("metrics", ("[accuracy,f1]", "[f1]"))


def test_ranges_are_drawn_evenly_and_rates_by_their_logarithm() -> None:
    _, axes = axes_of(
        ["learning_rate=1e-6..1e-2", "batch_size=8..64", "warmup_ratio=0..0.5", "seed=1,2"], KEYS
    )
    assert axes[:2] == [
        Range("learning_rate", 1e-6, 1e-2, whole=False, log=True),
        Range("batch_size", 8, 64, whole=True, log=False),
    ]
    found = drawn(axes, 400, seed=3)
    assert len(found) == 400
    rates = sorted(float(one["learning_rate"]) for one in found)
    # each decade gets a quarter of the values: 100, with a standard deviation of 8.7
    for decade in range(-6, -2):
        inside = sum(10.0**decade <= rate < 10.0 ** (decade + 1) for rate in rates)
        assert 60 < inside < 140
    sizes = {int(one["batch_size"]) for one in found}
    assert {min(sizes), max(sizes)} == {8, 64}
    assert all(0 <= float(one["warmup_ratio"]) <= 0.5 for one in found)


def test_a_longer_search_begins_with_the_shorter_one() -> None:
    _, axes = axes_of(["learning_rate=1e-5..1e-4", "seed=1,2,3"], KEYS)
    assert drawn(axes, 20, 7)[:5] == drawn(axes, 5, 7) != drawn(axes, 5, 8)
    assert len(drawn(axes[1:], 10, 0)) == 3  # there are no more combinations


def test_what_cannot_be_tried() -> None:
    def refused(*words: str, count: int = 0) -> str:
        try:
            _, axes = axes_of(words, KEYS)
            found = drawn(axes, count, 0) if count else combinations(axes)
        except UsageError as error:
            return str(error)
        pytest.fail(f"{found} is not refused")

    assert "--random N" in refused("learning_rate=1e-5..1e-4")
    assert "seed: named twice" in refused("seed=1,2", "seed=3")
    assert "whole number" in refused("batch_size=8..16.5", count=2)
    assert "is not a range" in refused("learning_rate=2e-5..1e-5", count=2)
    many = ",".join(map(str, range(40)))
    assert "1,600 runs" in refused(f"seed={many}", f"batch_size={many}")
    assert axes_of([f"data={Path('a..b')}"], KEYS)[1] == []
