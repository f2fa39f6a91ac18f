"""How well each class is predicted, as lines for a terminal."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ftcluster.text.table import aligned
from ftcluster_common.protocol.class_report import ClassReport, read_report

HEAD = ("precision", "recall", "f1", "support")
SHOWN = 20  # classes
MATRIX = 8  # classes whose matrix fits a terminal
MOST_WIDTH = 24  # of a name
CONFUSED = 5


def reports_of(event: Mapping[str, Any]) -> dict[str, ClassReport]:
    """The reports of an event `evaluation` or `result`, by their sets."""
    return {name: read_report(found) for name, found in event.get("classes", {}).items()}


def class_lines(event: Mapping[str, Any]) -> list[str]:
    """A table for each set of an event, its confusion matrix, and what is never predicted."""
    return [line for name, one in reports_of(event).items() for line in _of_set(name, one)]


def class_documents(event: Mapping[str, Any]) -> dict[str, Any]:
    """The reports of an event for `--json`, by their sets."""
    return {name: report.document() for name, report in reports_of(event).items()}


def score_rows(report: ClassReport) -> list[tuple[str, ...]]:
    """The cells of the table: a row for each class, of very many the worst, and for each mean."""
    chosen = sorted(report.classes, key=lambda one: one.f1)[:SHOWN]
    rows = [
        (_short(one.name), *_cells(one.precision, one.recall, one.f1), str(one.support))
        for one in report.classes
        if one in chosen
    ]
    if report.thresholds:
        at = [f"{one.threshold:.3f}" for one in report.classes if one in chosen]
        rows = [(*row, threshold) for row, threshold in zip(rows, at, strict=True)]
    total = (str(sum(one.support for one in report.classes)), *([""] * report.thresholds))
    return [
        *rows,
        *((f"{name} mean", *_cells(*values), *total) for name, values in report.averages.items()),
    ]


def head_of(report: ClassReport) -> tuple[str, ...]:
    """The headings of `score_rows`."""
    return ("class", *HEAD, *(("threshold",) * report.thresholds))


def notes_of(report: ClassReport) -> Iterator[str]:
    """What the table does not say, or what nobody may overlook."""
    more = len(report.classes) - SHOWN
    if more > 0 or report.left_out:
        yield f"these have the lowest f1; {max(more, 0) + report.left_out} more are not shown"
    if report.positive:
        yield f"f1 is that of the class {_short(report.positive)}"
    if names := report.never_predicted:
        yield f"NEVER PREDICTED: {_listed(names)}; it has rows, and the model finds none of them"
    if names := [one.name for one in report.classes if not one.support]:
        yield f"without a row, so not measured: {_listed(names)}"


def confusion_rows(report: ClassReport) -> list[tuple[str, ...]]:
    """The cells of the confusion matrix with its headings; none where it is too large."""
    names, matrix = [one.name for one in report.classes], report.matrix
    if matrix is None or len(names) > MATRIX:
        return []
    cells = [[str(count) for count in row] for row in matrix]
    head = ("true \\ predicted", *map(_short, names))
    return [head, *((_short(name), *row) for name, row in zip(names, cells, strict=True))]


def confused_lines(report: ClassReport) -> list[str]:
    """What is confused most often, where the matrix is too large."""
    if confusion_rows(report):
        return []
    return [
        f"{count} of {_short(true)} are taken for {_short(predicted)}"
        for true, predicted, count in report.confused[:CONFUSED]
    ]


def _of_set(name: str, report: ClassReport) -> Iterator[str]:
    yield f"{name}: {report.rows} rows"
    yield from _numbers([head_of(report), *score_rows(report)])
    if matrix := confusion_rows(report):
        yield from _numbers(matrix)
    yield from (f"  {line}" for line in (*confused_lines(report), *notes_of(report)))


def _numbers(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """A table whose columns but the first are aligned at their right."""
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
    """A name of the data in one line."""
    name = " ".join(name.split())
    return name if len(name) <= MOST_WIDTH else f"{name[: MOST_WIDTH - 3]}..."
