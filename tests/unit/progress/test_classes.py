"""Class reports on a terminal."""

from ftcluster.progress.classes import class_lines
from ftcluster_common.protocol.class_report import ClassReport, report_of_classes, report_of_sets


def lines(report: ClassReport) -> list[str]:
    return class_lines({"classes": {"validation": report.to_dict()}})


def test_two_classes() -> None:
    report = report_of_classes([0, 0, 0, 1, 0], [0, 1, 0, 1, 1], ["ham", "spam"])
    assert lines(report) == [
        "validation: 5 rows",
        "  class          precision  recall     f1  support",
        "  ham                0.500   1.000  0.667        2",
        "  spam               1.000   0.333  0.500        3",
        "  macro mean         0.750   0.667  0.583        5",
        "  weighted mean      0.800   0.600  0.567        5",
        "  true \\ predicted  ham  spam",
        "  ham                 2     0",
        "  spam                2     1",
        "  f1 is computed for the class spam",
    ]


def test_a_calibrated_classifier() -> None:
    report = report_of_classes([0, 0, 0, 1, 0], [0, 1, 0, 1, 1], ["ham", "spam"], 0.31, 1.25)
    assert lines(report)[-2:] == [
        "  the probabilities are calibrated with temperature 1.25",
        "  spam is predicted if its probability is at least 0.31",
    ]


def test_a_class_that_is_never_predicted_and_one_without_rows() -> None:
    report = report_of_classes([0, 0], [0, 1], ["a", "b\nerror: c", "d"])
    assert "  NEVER PREDICTED, although the data contains examples: b error: c" in lines(report)
    assert "  not measured, because the data contains no examples: d" in lines(report)


def test_many_classes_and_several_of_a_row() -> None:
    names = [f"class {n}" for n in range(60)]
    labels = [n for n in range(60) for _ in range(3)]
    wrong = [(n + 1) % 60 if n % 2 else n for n in labels]
    shown = lines(report_of_classes(wrong, labels, names))
    assert len(shown) < 40
    assert "  these classes have the lowest f1; 40 more are not shown" in shown
    assert "  3 rows of class 1 are predicted as class 2" in shown
    several = lines(report_of_sets([[0], []], [[0, 1], [1]], ["a", "b"], [0.25, 0.5]))
    assert several[1].split()[-1] == "threshold"
    assert several[2].split() == ["a", "1.000", "1.000", "1.000", "1", "0.250"]
    assert any(line.startswith("  NEVER PREDICTED, although") for line in several)
