import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable

import pytest

from ftcluster_train.engine.data.synthetic_pairs import TIMES, Row, generate


def words(text: object) -> Counter[str]:
    return Counter(re.findall(r"\w+", str(text).lower()))


def test_the_same_seed_gives_the_same_rows() -> None:
    assert generate(1, 50, "train") == generate(1, 50, "train")
    assert generate(1, 50, "train") != generate(2, 50, "train")
    assert generate(1, 80, "train")[:50] == generate(1, 50, "train")


@pytest.mark.parametrize("split", ["train", "validation"])
def test_rows_are_in_mrpcs_form_and_balanced(split: str) -> None:
    rows = generate(3, 400, split)
    assert all(set(row) == {"sentence1", "sentence2", "label"} for row in rows)
    assert Counter(row["label"] for row in rows) == {0: 200, 1: 200}
    assert all(row["sentence1"] != row["sentence2"] for row in rows)


def test_validation_speaks_of_what_training_never_names() -> None:
    train, validation = (
        {word for row in generate(1, 4000, split) for word in words(row["sentence2"])}
        for split in ("train", "validation")
    )
    times = {word for pair in TIMES for word in pair}
    assert train & validation - times == {"a", "at", "by", "the", "was"}


def test_they_are_varied() -> None:
    rows = generate(1, 4000, "train")
    assert len({row["sentence1"] for row in rows}) > 1990  # twin pairs share a sentence
    assert len({word for row in rows for word in words(row["sentence2"])}) > 75


def bag_of_words(row: Row) -> dict[str, float]:
    """Return words of each sentence, words in one only, words in both, overlap and lengths."""
    one, two = words(row["sentence1"]), words(row["sentence2"])
    found = {f"1:{word}": 1.0 for word in one} | {f"2:{word}": 1.0 for word in two}
    found |= {f"only:{word}": 1.0 for word in (one - two) + (two - one)}
    found |= {f"both:{word}": 1.0 for word in one & two}
    found["overlap"] = (one & two).total() / 10
    found["length"] = (one.total() - two.total()) / 10
    found["bias"] = 1.0
    return found


def word_pairs(row: Row) -> dict[str, float]:
    """Return each pair of a word of the first and a word of the second sentence."""
    one, two = words(row["sentence1"]), words(row["sentence2"])
    return {f"{a}>{b}": 1.0 for a in one - two for b in two - one} | {"bias": 1.0}


@pytest.mark.parametrize("features", [bag_of_words, word_pairs])
def test_counting_words_is_chance(features: Callable[[Row], dict[str, float]]) -> None:
    """Logistic regression on the training rows performs like chance on the validation rows."""
    train = [(features(row), int(row["label"])) for row in generate(7, 3000, "train")]
    validation = [(features(row), int(row["label"])) for row in generate(7, 400, "validation")]
    weights: dict[str, float] = defaultdict(float)

    def score(row: dict[str, float]) -> float:
        return sum(weights[name] * value for name, value in row.items())

    for epoch in range(4):
        for row, label in train:
            error = 1 / (1 + math.exp(-score(row))) - label
            for name, value in row.items():
                weights[name] -= 0.1 / (1 + epoch) * error * value
    right = sum((score(row) > 0) == bool(label) for row, label in validation)
    assert 0.4 <= right / len(validation) <= 0.65
