"""Recognizes exports of annotation tools, and converts their rows.

Every reader of files calls `converted`, which returns the rows of other files unchanged.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any

from ftcluster_common.data.importers.argilla import ARGILLA
from ftcluster_common.data.importers.doccano import DOCCANO
from ftcluster_common.data.importers.label_studio import LABEL_STUDIO, LABEL_STUDIO_ROWS
from ftcluster_common.data.importers.openai_preference import OPENAI_PREFERENCE
from ftcluster_common.data.importers.prodigy import PRODIGY
from ftcluster_common.data.importers.record import Importer
from ftcluster_common.data.importers.survey import Skipped, Survey
from ftcluster_common.data.rows import DataError, Row

IMPORTERS = (LABEL_STUDIO, *ARGILLA, OPENAI_PREFERENCE, PRODIGY, LABEL_STUDIO_ROWS, DOCCANO)
FIRST_ROWS = 20  # number of rows of a file that decide its format

PlacedRow = tuple[str, Any]  # place such as train.jsonl:7, and the row or its problem
Source = Callable[[], Iterator[PlacedRow]]  # reads a file from its beginning


def importer_of(rows: Iterable[PlacedRow]) -> Importer | None:
    """Return the importer whose format at least half of these rows have, or None."""
    objects = [row for _, row in rows if isinstance(row, dict)]
    for importer in IMPORTERS:
        if objects and 2 * sum(map(importer.matches, objects)) >= len(objects):
            return importer
    return None


def converted(sources: Sequence[Source], labelled: bool = True) -> Iterator[PlacedRow]:
    """Yield the rows of files with their places; rows of exports are converted.

    Args:
        sources: readers of the files of a set.
        labelled: False to also yield the texts of rows that have no answer to train on.
    """
    for where, outcome, _ in _outcomes(sources):
        if not isinstance(outcome, Skipped):
            yield where, outcome
        elif not labelled:
            yield where, outcome.fields


def export_notes(sources: Sequence[Source], name: str) -> list[str]:
    """Return notes about the exports among files: their formats, and the rows read and skipped.

    Args:
        name: name of the file or the set, for the notes.
    """
    if not any(importer_of(islice(source(), FIRST_ROWS)) for source in sources):
        return []
    surveys: dict[int, Survey] = {}
    for where, outcome, survey in _outcomes(sources):
        if survey is not None:
            surveys[id(survey)] = survey
            survey.count(where, outcome)
    return [note for survey in surveys.values() for note in survey.notes(name)]


def _outcomes(
    sources: Sequence[Source],
) -> Iterator[tuple[str, Row | Skipped | DataError | Any, Survey | None]]:
    """Yield place and row; for an export, yield place, conversion result and format's survey."""
    surveys: dict[str, Survey] | None = None
    for number, source in enumerate(sources):
        rows = source()
        first = [*islice(rows, FIRST_ROWS)]
        importer = importer_of(first)
        if importer is None:
            yield from ((where, row, None) for where, row in chain(first, rows))
            continue
        surveys = _surveys(sources[number:]) if surveys is None else surveys
        survey = surveys[importer.tool]
        for where, row in chain(first, rows):
            outcome = row if isinstance(row, DataError) else survey.outcome(where, row)
            yield where, outcome, survey


def _surveys(sources: Sequence[Source]) -> dict[str, Survey]:
    """Return the surveys of all exports among files, by tool."""
    surveys: dict[str, Survey] = {}
    for source in sources:
        rows = source()
        first = [*islice(rows, FIRST_ROWS)]
        if importer := importer_of(first):
            survey = surveys.setdefault(importer.tool, Survey(importer))
            for where, row in chain(first, rows):
                if not isinstance(row, DataError):
                    survey.add(where, row)
    for survey in surveys.values():
        survey.finish()
    return surveys
