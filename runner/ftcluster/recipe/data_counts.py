"""Count the rows and classes of local data, as far as possible without a tokenizer."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ftcluster.recipe.data_columns import header
from ftcluster.recipe.dataset_checks import options_for, used_splits
from ftcluster_common.data.class_names import as_word
from ftcluster_common.data.column_uses import UNREAD, Columns, unread_texts
from ftcluster_common.data.columns import is_incomplete
from ftcluster_common.data.data_files import (
    TRAIN,
    DataError,
    Row,
    Table,
    files_of,
    read_on_hosts,
)
from ftcluster_common.models.row_hashes import RowHashes, hash_of_text
from ftcluster_common.protocol.job import PREDICT, Purpose
from ftcluster_common.recipe import Recipe
from ftcluster_common.tasks.registry import spec_of
from ftcluster_common.tasks.row_review import RowReview
from ftcluster_common.tasks.spec import Options


def count_rows(
    recipe: Recipe, columns: Columns, purpose: Purpose = "train"
) -> tuple[list[dict[str, Any]], list[str]]:
    """Count the rows and classes in each split of a single data set; also return notes.

    `check_data` must have accepted the data.

    Args:
        columns: the columns that are read, by their use.

    Returns:
        A list with a dict for each split, and a list of notes. A dict contains the split's name
        (`set`), its number of rows (`rows`) and the number of rows of each class (`classes`). If
        rows were skipped, `left_out` is their number. Except for the training set, `duplicates` is
        the number of rows that also occur in the training set. The list is empty for text files and
        for data that only hosts read: Parquet, Arrow, and data from the Hub.
    """
    path = Path(recipe.source)
    files = files_of(path) if path.exists() and header(recipe, purpose) else {}
    used = used_splits(files, recipe.options, purpose, recipe.has_test) if files else ()
    readable = {
        name: Table(files[name], purpose != PREDICT)
        for name in used
        if name in files and not any(map(read_on_hosts, files[name]))
    }
    if not readable or not columns:
        return [], []
    known = RowHashes()
    skips = recipe.spec.skips_incomplete(recipe.options)
    label = columns.get("label", ()) if recipe.spec.counts_classes(recipe.options) else ()
    options = options_for(files, recipe.options, purpose)
    reviews = {name: RowReview(options, columns) for name in readable}
    sets = [
        _set(name, table, columns, (options, label), known, skips, reviews[name])
        for name, table in readable.items()
    ]
    notes = [
        f"NOT READ, although it contains texts: column {name}"
        for name in unread_texts(columns, _rows(next(iter(readable.values()))))
        if name not in (recipe.group_column, recipe.stratify_column)
    ]
    notes += recipe.spec.reading_notes(recipe.options, options, columns)
    notes += [note for name, reviewed in reviews.items() for note in reviewed.notes(name)]
    if label and len(sets[0]["classes"]) == 1:
        notes.append(
            f"{sets[0]['set']}: all rows have the same label, so there is nothing to learn"
        )
    if len(label) > 1:
        notes.append(
            f"a row may belong to several classes, because the columns {', '.join(label)} each "
            "contain 0 or 1"
        )
    return sets, notes


def _set(
    name: str, table: Table, columns: Mapping[str, tuple[str, ...]],
    labelled: tuple[Options, Sequence[str]],
    known: RowHashes, skips: bool, reviewed: RowReview,
) -> dict[str, Any]:  # fmt: skip
    options, label = labelled
    read = [
        name for use, names in columns.items() if use not in (UNREAD, "label") for name in names
    ]
    rows, left_out, duplicates, classes = 0, 0, 0, Counter[str]()
    for place, row in table.with_places():
        if isinstance(row, DataError):
            continue
        rows += 1
        if skips and is_incomplete(row, [*read, *label]):
            left_out += 1
            continue
        if not reviewed.add(row, place):
            left_out += 1
            continue
        cells = json.dumps([row.get(name) for name in read])
        mark = hash_of_text(cells)
        duplicates += name != TRAIN and mark in known
        if name == TRAIN:
            known.add(mark)
        if label:
            labels = spec_of(options).labels_of(options, columns, row)
            classes.update(
                [*dict.fromkeys(map(as_word, labels))]
            )  # the same class twice counts once
    found = {"set": name, "rows": rows, "classes": dict(classes.most_common())}
    found |= {"left_out": left_out} if left_out else {}
    return found if name == TRAIN else {**found, "duplicates": duplicates}


def _rows(table: Table) -> Iterator[Row]:
    for _, row in table.with_places():
        if not isinstance(row, DataError):
            yield row
