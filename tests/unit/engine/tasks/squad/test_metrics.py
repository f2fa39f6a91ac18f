import pytest

from ftcluster_train.engine.tasks.squad.metrics import (
    exact_match,
    normalise,
    squad_f1,
    squad_metrics,
)


@pytest.mark.parametrize(
    ("answer", "normal"),
    [
        ("The  Eiffel-Tower!", "eiffeltower"),
        ("an A. the\tÉtat", "état"),
        ("«the» x's", "« » xs"),  # only ASCII punctuation, as in SQuAD's script
        ("theatre", "theatre"),
    ],
)
def test_answers_are_normalised_as_in_squads_script(answer: str, normal: str) -> None:
    assert normalise(answer) == normal


def test_the_best_of_several_true_answers_counts() -> None:
    true = ["in October 1973", "October", "1973"]
    assert exact_match("the 1973.", true) == 1.0
    assert exact_match("1974", true) == 0.0
    assert squad_f1("October 1973", true) == pytest.approx(0.8)  # precision 1, recall 2/3
    # compared as bags of words
    assert squad_f1("to be to be", ["be be quick"]) == pytest.approx(4 / 7)


def test_squad_1_in_percent() -> None:
    found = squad_metrics(["a cat", "no"], [["cat"], ["yes", "oh yes"]], unanswerable=False)
    assert found == {"exact_match": 50.0, "f1": 50.0}


@pytest.mark.parametrize(
    ("answer", "true", "exact", "f1"),
    [  # results of evaluate-v1.1.py
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
