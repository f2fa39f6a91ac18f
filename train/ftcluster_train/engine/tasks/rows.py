"""The rows of a data set as a task reads them: its sets and columns, and what to tell of them."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ftcluster_common.data.column_uses import UNREAD, Columns, unread_texts
from ftcluster_common.data.columns import is_incomplete
from ftcluster_common.data.data_files import TRAIN, VALIDATION, DataError
from ftcluster_common.protocol.job import PREDICT, Purpose
from ftcluster_common.tasks.registry import spec_of
from ftcluster_common.tasks.row_review import RowReview
from ftcluster_train.engine.data.sets import PREDICTED, SEED, Part, choose_sets, draw_rows
from ftcluster_train.engine.data.sources import (
    Rows,
    check_rows,
    class_names,
    columns_of,
    load_rows,
)
from ftcluster_train.engine.tasks.tokens import TokenizedTexts

ROWS_FILE = "rows.jsonl"  # beside the samples: the rows to predict


class TaskRows(TokenizedTexts):
    """What a task does with rows before they are tokens.

    Attributes:
        options: the recipe's fields of the task.
        purpose: what the rows are for.
        validation_splits: the sets that are evaluated.
        uses: the columns of the data, by what they are for.
        drawn: the rows of the training set that became the validation set, if some did.
    """

    options: Any
    purpose: Purpose
    validation_splits: tuple[str, ...] = (VALIDATION,)
    uses: Columns
    drawn: Part | None = None
    _unread: tuple[str, ...] = ()
    _reviewed: Sequence[str] = ()

    def sets(self, data: str) -> dict[str, Rows]:
        """The rows of each set that the task reads.

        Raises:
            TrainError: they cannot be loaded, or the data do not have them.
        """
        found = load_rows(data, self.recipe.data_config)
        sets = choose_sets(found, self.purpose, self.validation_splits, data)
        self.look_at_rows(next(iter(sets.values())))
        for split, rows in sets.items():
            check_rows(rows, split, self.options, self.purpose != PREDICT)
        self.look_at_columns(next(iter(sets.values())))
        if self.purpose != PREDICT:
            self._reviewed = [
                note for split, rows in sets.items() for note in self._review(rows, split)
            ]
        return sets

    def _review(self, rows: Rows, split: str) -> list[str]:
        """Return what is odd about the rows of a set."""
        labels = self.uses.get("label", ())
        names = class_names(rows, labels[0]) if len(labels) == 1 else []
        reviewed = RowReview(self.options, self.uses, names)
        if not reviewed.is_needed:
            return []
        skips = getattr(self.options, "skip_incomplete", False)
        read = [name for use, some in self.uses.items() if use != UNREAD for name in some]
        for row in rows:
            if not (skips and is_incomplete(row, read)):
                reviewed.add(row)
        return reviewed.notes(split)

    def look_at_rows(self, rows: Rows) -> None:
        """Find in the rows of the first set what `options` leave open."""

    def look_at_columns(self, rows: Rows) -> None:
        """Find what the columns of rows are for."""
        try:
            self.uses = spec_of(self.options).column_uses(
                self.options, columns_of(rows), self.purpose != PREDICT
            )
        except DataError:  # who reads the rows says more of it
            return
        self._unread = tuple(unread_texts(self.uses, rows))

    def notices(self) -> list[str]:
        """What a user should know of the data that were encoded."""
        found = [*self._reviewed]
        if self._unread:
            read = (", ".join(names) for use, names in self.uses.items() if use != UNREAD)
            found.append(
                f"NOT READ, although it holds texts: column {', '.join(self._unread)}; read are "
                f"{', '.join(read)}"
            )
        for token, count in self.special.items():
            found.append(
                f"{count} texts hold {token}, which the tokenizer takes for its special token"
            )
        if self.empty:
            found.append(f"{self.empty} texts have no token of their own: the model sees nothing")
        return found

    def with_validation(self, sets: dict[str, Rows]) -> tuple[dict[str, Rows], list[str]]:
        """Sets for a training, with one for validation where there is none, and a notice of it."""
        if self.purpose != "train" or len(sets) > 1:
            return sets, []
        seed, percent = self.recipe.training.data_seed, self.options.validation_split_percentage
        rows = sets[TRAIN]
        drawn, what = self.draw_validation(rows, percent, SEED if seed is None else seed)
        self.drawn = Part(rows, drawn, True)
        notice = f"validation: {what}, {percent:g} % of train"
        return {TRAIN: Part(rows, drawn, False), VALIDATION: self.drawn}, [notice]

    def draw_validation(self, rows: Rows, percent: float, seed: int) -> tuple[frozenset[int], str]:
        """The numbers of the training set's rows for validation, and how many, for a notice."""
        drawn = draw_rows([0 for _ in rows], percent, seed)
        return drawn, f"{len(drawn)} rows"

    def keep_rows(self, sets: Mapping[str, Rows], folder: Path) -> None:
        """Write the rows to predict, for `answers` to be added."""
        if PREDICTED in sets:
            with (folder / ROWS_FILE).open("w", encoding="utf-8") as file:
                for row in sets[PREDICTED]:
                    file.write(json.dumps(row, default=str, ensure_ascii=False) + "\n")
