import math
import random

import pytest

from ftcluster_common.protocol.class_report import report_of_classes
from ftcluster_train.engine.metrics import (
    accuracy,
    best_threshold,
    default_metrics,
    exact_match,
    matthews,
    measure,
    normalise,
    pearson,
    perplexity,
    ranks,
    retrieval_metrics,
    spearman,
    squad_f1,
    squad_metrics,
)


def test_accuracy_and_f1_of_a_known_table() -> None:
    predictions, labels = [1, 1, 1, 0, 0], [1, 1, 0, 1, 0]
    assert accuracy(predictions, labels) == pytest.approx(0.6)
    report = report_of_classes(predictions, labels, ["no", "yes"])
    found = measure(("f1", "f1_micro"), predictions, labels, report)
    assert found == {"f1": pytest.approx(2 / 3), "f1_micro": pytest.approx(0.6)}


def test_f1_without_any_positive_is_zero() -> None:
    report = report_of_classes([0], [0], ["no", "yes"])
    assert measure(("f1",), [0], [0], report) == {"f1": 0.0}


def test_f1_of_more_than_two_classes_is_none_of_theirs() -> None:
    with pytest.raises(KeyError, match="f1"):
        measure(("f1",), [0], [2], report_of_classes([0], [2], ["a", "b", "c"]))


def test_no_other_threshold_gives_a_better_f1() -> None:
    draw = random.Random(7)
    for _ in range(50):
        labels = [draw.random() < 0.3 for _ in range(20)]
        values = [round(draw.random() * 0.7 + 0.3 * label, 2) for label in labels]  # with ties

        def f1_at(limit: float) -> float:
            found = [value >= limit for value in values]  # noqa: B023
            right = sum(a and b for a, b in zip(found, labels, strict=True))  # noqa: B023
            return 2 * right / (sum(found) + sum(labels) or 1)  # noqa: B023

        assert f1_at(best_threshold(values, labels)) == max(map(f1_at, [0.5, *values]))


@pytest.mark.parametrize(
    ("predictions", "labels", "value"),  # the values are those of scikit-learn 1.7
    [
        ([1, 0, 1, 1], [1, 1, 1, 0], -0.3333333333333333),
        ([0, 0, 1, 2, 2, 2], [0, 0, 1, 1, 2, 2], 0.7833494518006403),
        ([1, 0, 1], [1, 0, 1], 1.0),
        ([1, 1, 1], [1, 0, 1], 0.0),  # always the same class: not defined
    ],
)
def test_matthews(predictions: list[int], labels: list[int], value: float) -> None:
    assert matthews(predictions, labels) == pytest.approx(value)


def test_correlations_with_ties() -> None:
    x = [4.2, 0.5, 3.1, 2.0, 5.0, 2.0, 1.5]
    y = [4.0, 1.0, 3.0, 2.5, 4.75, 1.0, 2.5]
    assert pearson(x, y) == pytest.approx(0.9094172768277455)  # scipy 1.16
    assert spearman(x, y) == pytest.approx(0.8807710121010887)
    assert pearson([1.0, 1.0], [0.0, 2.0]) == 0.0
    assert ranks([10.0, 30.0, 10.0, 20.0]) == [1.5, 4.0, 1.5, 3.0]


def test_what_is_measured_where_the_recipe_does_not_say() -> None:
    assert default_metrics(2) == ("accuracy", "f1")
    assert default_metrics(3) == ("accuracy", "f1_macro")
    assert default_metrics(0) == ("pearson", "spearman")
    assert default_metrics(3, several=True) == ("f1_micro", "f1_macro")
    assert measure(("accuracy",), [2, 0], [2, 1]) == {"accuracy": 0.5}


def test_perplexity_is_a_number_whatever_the_loss() -> None:
    assert perplexity(math.log(50257)) == pytest.approx(50257)
    assert math.isfinite(perplexity(1e6))


@pytest.mark.parametrize(
    ("answer", "normal"),
    [
        ("The  Eiffel-Tower!", "eiffeltower"),
        ("an A. the\tÉtat", "état"),
        ("«the» x's", "« » xs"),  # only ASCII's punctuation, as in SQuAD's script
        ("theatre", "theatre"),
    ],
)
def test_answers_are_normalised_as_in_squads_script(answer: str, normal: str) -> None:
    assert normalise(answer) == normal


def test_the_best_of_several_true_answers_counts() -> None:
    true = ["in October 1973", "October", "1973"]
    assert exact_match("the 1973.", true) == 1.0
    assert exact_match("1974", true) == 0.0
    assert squad_f1("October 1973", true) == pytest.approx(0.8)  # P 1, R 2/3
    assert squad_f1("to be to be", ["be be quick"]) == pytest.approx(4 / 7)  # bags of words


def test_squad_1_in_percent() -> None:
    found = squad_metrics(["a cat", "no"], [["cat"], ["yes", "oh yes"]], unanswerable=False)
    assert found == {"exact_match": 50.0, "f1": 50.0}


@pytest.mark.parametrize(
    ("answer", "true", "exact", "f1"),
    [  # what evaluate-v1.1.py gives
        ("", ["the"], 100.0, 0.0),
        ("The", ["a"], 100.0, 0.0),
        ("!", ["..."], 100.0, 0.0),
        ("cat", ["the", "cat"], 100.0, 100.0),
        ("", ["an", "cat"], 100.0, 0.0),
        ("the", ["cat"], 0.0, 0.0),
        ("a b", ["the b", "!"], 100.0, 100.0),
        ("...", ["dog", "???"], 100.0, 0.0),
    ],
)
def test_squad_1_scores_empty_answers_as_its_script(
    answer: str, true: list[str], exact: float, f1: float
) -> None:
    assert squad_metrics([answer], [true], unanswerable=False) == {"exact_match": exact, "f1": f1}


def test_squad_2_tells_questions_without_an_answer_apart() -> None:
    answers, true = ["cat", "", "", "dog"], [["cat"], [], ["owl"], []]
    assert squad_metrics(answers, true, unanswerable=True) == {
        "exact_match": 50.0, "f1": 50.0, "HasAns_exact": 50.0, "HasAns_f1": 50.0,
        "NoAns_exact": 50.0, "NoAns_f1": 50.0,
    }  # fmt: skip
    assert "NoAns_f1" not in squad_metrics(["cat"], [["cat"]], unanswerable=True)


def test_metrics_of_three_queries() -> None:
    found = [
        [7, 1, 2],  # the only text first
        [1, 8, 9],  # two texts, second and third
        [*range(10, 20), 4],  # behind the tenth place
    ]
    metrics = retrieval_metrics(found, [[7], [8, 9], [4]])
    second = (1 / math.log2(3) + 1 / 2) / (1 + 1 / math.log2(3))
    assert metrics == {
        "ndcg_at_10": pytest.approx((1 + second) / 3),
        "mrr_at_10": pytest.approx((1 + 0.5) / 3),
        "accuracy_at_1": pytest.approx(1 / 3),
    }


def test_more_texts_than_places_are_all_right() -> None:
    assert set(retrieval_metrics([range(10)], [range(15)]).values()) == {1.0}
