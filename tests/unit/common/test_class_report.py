"""Reports of classes against scikit-learn 1.9's classification_report and confusion_matrix."""

import json

import pytest

from ftcluster_common.protocol.class_report import (
    MOST_CLASSES,
    ClassReport,
    read_report,
    report_of_classes,
    report_of_sets,
)
from ftcluster_common.protocol.events import is_event

TUNED = report_of_classes([0, 1, 1, 0], [0, 1, 0, 0], ["no", "yes"], 0.25, 1.5)
LABELS = [0, 0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 2, 0, 1, 4]
PREDICTED = [0, 0, 1, 0, 2, 1, 0, 1, 2, 0, 2, 2, 0, 0, 1]
ONE = report_of_classes(PREDICTED, LABELS, ["a", "b", "c", "in no row", "e"])
SETS = report_of_sets(
    [[0], [1, 2], [0], [], [], [1, 2]], [[0, 2], [1], [0, 1], [], [0], [1, 2]], ["a", "b", "c"],
    [0.5, 0.4, 0.3],
)  # fmt: skip
ZERO = (0.0, 0.0, 0.0)


def scores(report: ClassReport) -> dict[str, tuple[float, float, float]]:
    of_classes = {one.name: (one.precision, one.recall, one.f1) for one in report.classes}
    return {**of_classes, **report.averages}


@pytest.mark.parametrize(
    ("report", "wanted"),
    [
        (
            ONE,
            {
                "a": (0.5714285714285714, 0.6666666666666666, 0.6153846153846154),
                "b": (0.5, 0.5, 0.5),
                "c": (0.75, 0.75, 0.75),
                "in no row": ZERO,  # not included in the means either
                "e": ZERO,
                "macro": (0.45535714285714285, 0.47916666666666663, 0.46634615384615385),
                "weighted": (0.5619047619047619, 0.6, 0.5794871794871795),
            },
        ),
        (
            SETS,
            {
                "a": (1.0, 0.6666666666666666, 0.8),
                "b": (1.0, 0.6666666666666666, 0.8),
                "c": (0.5, 0.5, 0.5),
                "micro": (0.8333333333333334, 0.625, 0.7142857142857143),
                "macro": (0.8333333333333334, 0.611111111111111, 0.7000000000000001),
                "weighted": (0.875, 0.625, 0.7250000000000001),
            },
        ),
    ],
)
def test_scores(report: ClassReport, wanted: dict[str, tuple[float, float, float]]) -> None:
    assert scores(report) == {name: pytest.approx(values) for name, values in wanted.items()}
    again = read_report(json.loads(json.dumps(report.to_dict())))
    assert again == report


def test_the_confusion_matrix_and_what_is_never_predicted() -> None:
    rows = [[4, 1, 1, 0, 0], [2, 2, 0, 0, 0], [1, 0, 3, 0, 0], [0] * 5, [0, 1, 0, 0, 0]]
    assert ONE.matrix == rows
    assert (ONE.never_predicted, SETS.never_predicted, SETS.matrix) == (["e"], [], None)
    assert ONE.document()["never_predicted"] == ["e"]


def test_of_very_many_classes_the_worst_are_kept() -> None:
    count = MOST_CLASSES + 50
    labels = list(range(count))
    report = report_of_classes([*labels[:-5], 0, 0, 0, 0, 0], labels, [f"c{n}" for n in labels])
    text = json.dumps(report.to_dict())
    kept = read_report(json.loads(text))
    assert len(kept.classes) == MOST_CLASSES
    assert (kept.left_out, kept.matrix) == (50, None)
    assert kept.never_predicted == [f"c{n}" for n in labels[-5:]]
    assert kept.averages == report.averages  # over all classes, not over the kept ones
    assert kept.document()["left_out"] == 50
    assert len(text) < 1 << 14  # readers of a run's last events read 64 kB


@pytest.mark.parametrize(
    "classes",
    [
        [], {"validation": []}, {"validation": {}}, {"validation": {**ONE.to_dict(), "rows": -1}},
        {"validation": {**ONE.to_dict(), "classes": [["a", 1, 1]]}},
        {"validation": {**ONE.to_dict(), "classes": [["a", True, 1, 1, None]]}},
        {"validation": {**ONE.to_dict(), "confused": [["a", "b", 1 << 70]]}},
        {"validation": {**ONE.to_dict(), "averages": {"macro": [0.5, 0.5, 1.5]}}},
        {"validation": {**ONE.to_dict(), "averages": {"macro": [0.5]}}},
        {"validation": {**ONE.to_dict(), "averages": [0.5]}},
    ],
)  # fmt: skip
def test_a_host_cannot_send_anything_else(classes: object) -> None:
    event = {"step": 1, "epoch": 1, "metrics": {}, "seconds": 1}
    assert is_event("evaluation", {**event, "classes": {"validation": ONE.to_dict()}})
    assert not is_event("evaluation", {**event, "classes": classes})


def test_no_threshold_of_many_classes_is_lost() -> None:
    names, limits = [f"c{n}" for n in range(500)], [n / 500 for n in range(500)]
    report = report_of_sets([[0], [1]], [[0], [2]], names, limits)
    again = read_report(json.loads(json.dumps(report.to_dict())))
    assert [one.threshold for one in again.classes] == limits


def test_a_tuned_threshold_and_a_temperature_are_kept() -> None:
    event = json.loads(json.dumps(TUNED.to_dict()))
    assert read_report(event) == TUNED
    document = TUNED.document()
    assert document["temperature"] == 1.5
    assert [one.get("threshold") for one in document["classes"]] == [None, 0.25]
    assert "temperature" not in ONE.to_dict()  # as in earlier releases
    for wrong in (0, -1, "x", [], float("inf"), float("nan")):
        with pytest.raises((ValueError, TypeError)):
            read_report({**event, "temperature": wrong})
