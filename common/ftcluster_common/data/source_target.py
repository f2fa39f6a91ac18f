"""The columns with a source text and a target text, and a function that reads both texts."""

from collections.abc import Mapping
from typing import NamedTuple

from ftcluster_common.data.data_files import DataError, Row, found_columns, short


class SourceTarget(NamedTuple):
    """The columns with the source text and the target text.

    Attributes:
        target: column with the target; "" if no target is needed.
        languages: keys of the source and target language if a cell maps languages to texts.
    """

    source: str
    target: str
    languages: tuple[str, str] | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns without duplicates."""
        return tuple(dict.fromkeys(filter(None, (self.source, self.target))))


def source_and_target(row: Row, columns: SourceTarget) -> tuple[str, str]:
    """Return both texts of a row; the target is "" if it is not needed.

    Raises:
        DataError: a column is missing, empty or not a string. The message names the column.
    """
    missing = [name for name in columns.names if name not in row]
    if missing:
        raise DataError(f"no column {', '.join(missing)}; {found_columns(row)}")
    cells = [(name, row[name]) for name in (columns.source, columns.target) if name]
    if columns.languages:
        cells = [
            _of_language(cell, language, name)
            for (name, cell), language in zip(cells, columns.languages, strict=False)
        ]
    for name, text in cells:
        if not isinstance(text, str):
            raise DataError(f"column {name} must be a string, got {short(text)}")
        if not text.strip():
            raise DataError(f"column {name} is empty")
    source, target = (*(text for _, text in cells), "")[:2]
    return source, target


def language_code(language: str) -> str:
    """Return the language code used in data for a tokenizer's code, such as en for en_XX."""
    return language.partition("_")[0]


def _of_language(cell: object, language: str, column: str) -> tuple[str, object]:
    if not isinstance(cell, Mapping):
        raise DataError(
            f"column {column} must be an object with a text for each language, got {short(cell)}"
        )
    for name in (language, language_code(language)):
        if name in cell:
            return f"{column}.{name}", cell[name]
    raise DataError(
        f"column {column} contains no text for language {language}; found "
        f"{', '.join(map(str, cell))}"
    )
