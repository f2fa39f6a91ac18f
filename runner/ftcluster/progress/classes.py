"""Formats class reports (scores of each class) as lines for a terminal."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ftcluster.text.table import aligned
from ftcluster_common.protocol.class_report import ClassReport, read_report

HEAD = ("precision", "recall", "f1", "support")
SHOWN = 20  # maximum number of classes in a table
MATRIX = 8  # maximum number of classes in a confusion matrix, so that it fits a terminal
MOST_WIDTH = 24  # maximum length of a name in characters
CONFUSED = 5


def reports_of(event: Mapping[str, Any]) -> dict[str, ClassReport]:
    """Return the class reports of an event `evaluation` or `result`, by data set."""
    return {name: read_report(report) for name, report in event.get("classes", {}).items()}


def class_lines(event: Mapping[str, Any]) -> list[str]:
    """Return the lines for each data set of an event: a table, a confusion matrix and notes."""
    return [line for name, report in reports_of(event).items() for line in _of_set(name, report)]


def class_documents(event: Mapping[str, Any]) -> dict[str, Any]:
    """Return the class reports of an event for `--json`, by data set."""
    return {name: report.document() for name, report in reports_of(event).items()}


def score_rows(report: ClassReport) -> list[tuple[str, ...]]:
    """Return a row for each class and each mean, but at most SHOWN classes with the lowest f1."""
    lowest = sorted(report.classes, key=lambda scores: scores.f1)[:SHOWN]
    shown = [scores for scores in report.classes if scores in lowest]
    rows = [
        (_short(row.name), *_cells(row.precision, row.recall, row.f1), str(row.support))
        for row in shown
    ]
    if report.thresholds:
        at = [f"{scores.threshold:.3f}" for scores in shown]
        rows = [(*row, threshold) for row, threshold in zip(rows, at, strict=True)]
    support = str(sum(scores.support for scores in report.classes))
    total = (support, *([""] * report.thresholds))
    return [
        *rows,
        *((f"{name} mean", *_cells(*values), *total) for name, values in report.averages.items()),
    ]


def head_of(report: ClassReport) -> tuple[str, ...]:
    """Return the headings of `score_rows`."""
    return ("class", *HEAD, *(("threshold",) * report.thresholds))


def notes_of(report: ClassReport) -> Iterator[str]:
    """Yield notes about rows missing from the table, and warnings about classes."""
    more = len(report.classes) - SHOWN
    if more > 0 or report.left_out:
        hidden = max(more, 0) + report.left_out
        yield f"these classes have the lowest f1; {hidden} more are not shown"
    if report.positive:
        yield f"f1 is computed for the class {_short(report.positive)}"
    if report.temperature is not None:
        yield f"the probabilities are calibrated with temperature {report.temperature:.4g}"
    for one in () if report.several else report.classes:
        if one.threshold is not None:
            name = _short(one.name)
            yield f"{name} is predicted if its probability is at least {one.threshold:.4g}"
    if names := report.never_predicted:
        yield f"NEVER PREDICTED, although the data contains examples: {_listed(names)}"
    if names := [scores.name for scores in report.classes if not scores.support]:
        yield f"not measured, because the data contains no examples: {_listed(names)}"


def confusion_rows(report: ClassReport) -> list[tuple[str, ...]]:
    """Return the confusion matrix as cells with headings; empty if the matrix is too large."""
    names, matrix = [scores.name for scores in report.classes], report.matrix
    if matrix is None or len(names) > MATRIX:
        return []
    cells = [[str(count) for count in row] for row in matrix]
    head = ("true \\ predicted", *map(_short, names))
    return [head, *((_short(name), *row) for name, row in zip(names, cells, strict=True))]


def confused_lines(report: ClassReport) -> list[str]:
    """Return the most frequent confusions if the matrix is too large to show."""
    if confusion_rows(report):
        return []
    return [
        f"{count} rows of {_short(true)} are predicted as {_short(predicted)}"
        for true, predicted, count in report.confused[:CONFUSED]
    ]


def _of_set(name: str, report: ClassReport) -> Iterator[str]:
    yield f"{name}: {report.rows} rows"
    yield from _numbers([head_of(report), *score_rows(report)])
    if matrix := confusion_rows(report):
        yield from _numbers(matrix)
    yield from (f"  {line}" for line in (*confused_lines(report), *notes_of(report)))


def _numbers(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a table; all columns except the first are aligned right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    right = [
        (row[0], *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True)))
        for row in rows
    ]
    return (f"  {line}" for line in aligned(right))


def _cells(*values: float) -> list[str]:
    return [f"{value:.3f}" for value in values]


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(map(_short, names[:SHOWN])) + more


def _short(name: str) -> str:
    """Return a name from the data as one short line."""
    name = " ".join(name.split())
    return name if len(name) <= MOST_WIDTH else f"{name[: MOST_WIDTH - 3]}..."
