"""The columns of a text that is read and of one that is written, and both texts of a row."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ftcluster_common.data.data_files import DataError, Row, short
from ftcluster_common.recipe import Seq2SeqLm

TRANSLATION = "translation"
KNOWN = (
    ("source", "target"), ("document", "summary"), ("article", "highlights"),
    ("dialogue", "summary"), ("article", "summary"), ("text", "summary"), ("input", "target"),
    ("input_text", "target_text"), ("source_text", "target_text"), ("src", "tgt"),
    ("input", "output"), ("text", "target"), ("question", "answer"),
)  # fmt: skip


class SourceTarget(NamedTuple):
    """The columns with the text to read and the one to write.

    Attributes:
        target: "" where it is not needed.
        languages: the keys of both, where a cell has texts by their language.
    """

    source: str
    target: str
    languages: tuple[str, str] | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Each column once."""
        return tuple(dict.fromkeys(filter(None, (self.source, self.target))))


def source_target_columns(
    options: Seq2SeqLm, columns: Sequence[str], answered: bool = True
) -> SourceTarget:
    """The columns with sources and targets.

    Args:
        answered: whether targets are needed.

    Raises:
        DataError: there are none such; has the columns and how they are named in a recipe.
    """
    source, target = options.source_column, options.target_column
    languages = (options.source_lang, options.target_lang)
    if languages[0] and languages[1]:
        both = source or TRANSLATION
        if both in columns and target in (None, both):
            return SourceTarget(both, both if answered else "", (languages[0], languages[1]))
        source, target = (
            source or _column_of(languages[0], columns),
            target or _column_of(languages[1], columns),
        )
    names = {name.lower(): name for name in columns}
    for known in KNOWN:
        found = names.get(known[0]), names.get(known[1])
        fits = target in (None, found[1]) if answered and found[1] else not answered
        if found[0] and source in (None, found[0]) and fits:
            source, target = found
            break
    wanted = (source, target) if answered else (source,)
    missing = [name for name in wanted if name not in columns]
    if not missing:
        return SourceTarget(source or "", (target or "") if answered else "")
    named = [name for name in missing if name]
    what = f"no column {', '.join(named)}" if named else "no columns known for source and target"
    hint = f"source_column={source or 'NAME'} target_column={target or 'NAME'}"
    if TRANSLATION in columns and not named:
        what, hint = "texts of several languages", "source_lang=en target_lang=de"
    raise DataError(f"{what}; found {', '.join(columns) or 'none'}; name them: {hint}")


def source_and_target(row: Row, columns: SourceTarget) -> tuple[str, str]:
    """Both texts of a row; the target is "" where it is not needed.

    Raises:
        DataError: a column is missing, or is not a text, or is empty; says which one.
    """
    missing = [name for name in columns.names if name not in row]
    if missing:
        raise DataError(f"no column {', '.join(missing)}; found {', '.join(map(str, row))}")
    cells = [(name, row[name]) for name in (columns.source, columns.target) if name]
    if columns.languages:
        cells = [
            _of_language(cell, language, name)
            for (name, cell), language in zip(cells, columns.languages, strict=False)
        ]
    for name, text in cells:
        if not isinstance(text, str):
            raise DataError(f"{name} is {short(text)}, not a text")
        if not text.strip():
            raise DataError(f"{name} is empty")
    source, target = (*(text for _, text in cells), "")[:2]
    return source, target


def _column_of(language: str, columns: Sequence[str]) -> str | None:
    return next((name for name in (language, _code(language)) if name in columns), None)


def _code(language: str) -> str:
    """What data call a language that a tokenizer calls en_XX or eng_Latn."""
    return language.partition("_")[0]


def _of_language(cell: object, language: str, column: str) -> tuple[str, object]:
    if not isinstance(cell, Mapping):
        raise DataError(f"{column} is {short(cell)}, not an object with a text for each language")
    for name in (language, _code(language)):
        if name in cell:
            return f"{column}.{name}", cell[name]
    raise DataError(f"{column} has no language {language}; it has {', '.join(map(str, cell))}")
