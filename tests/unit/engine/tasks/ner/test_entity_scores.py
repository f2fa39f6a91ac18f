"""Entities are counted as in seqeval; the expected values come from tests/seqeval_figures.py."""

import json
from typing import Any

import pytest

from ftcluster_train.engine.tasks.ner.entity_scores import entity_metrics, entity_report
from tests.seqeval_figures import FIGURES

SEQEVAL: dict[str, Any] = json.loads(FIGURES.read_text(encoding="utf-8"))
AVERAGES = ("micro", "macro", "weighted")


@pytest.mark.parametrize("scheme", ["IOB2", "IOBES"])
def test_entities_of_tags_of_no_scheme_are_those_of_seqeval(scheme: Any) -> None:
    wanted = SEQEVAL[scheme]
    found, true = ([row.split() for row in wanted[name]] for name in ("predicted", "true"))
    report, figures = entity_report(found, true, scheme), wanted["report"]
    assert {one.name for one in report.classes} == figures.keys() - {f"{a} avg" for a in AVERAGES}
    for one in report.classes:
        ours = (one.precision, one.recall, one.f1, one.support)
        assert ours == pytest.approx(tuple(figures[one.name].values()))
        assert one.right  # otherwise the values would prove nothing
    for name in AVERAGES:
        of_average = tuple(figures[f"{name} avg"].values())[:3]
        assert report.averages[name] == pytest.approx(of_average)
    metrics = entity_metrics(report, found, true, scheme)
    assert metrics["accuracy"] == pytest.approx(wanted["accuracy"])
    assert metrics["f1"] == pytest.approx(figures["micro avg"]["f1-score"])


def test_plain_tags_are_counted_by_words() -> None:
    found, true = [["NN", "VB"], ["NN"]], [["NN", "NN"], ["DT"]]
    report = entity_report(found, true, "plain")
    assert {one.name: (one.right, one.support) for one in report.classes} == {
        "DT": (0, 1), "NN": (1, 2), "VB": (0, 0),
    }  # fmt: skip
    assert list(entity_metrics(report, found, true, "plain")) == [
        "accuracy", "f1_macro", "f1_weighted",
    ]  # fmt: skip
