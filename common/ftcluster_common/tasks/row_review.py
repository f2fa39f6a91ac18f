"""Counts probable labelling mistakes, and rows that an annotator rejected.

The control node and the hosts use this same code. Standard library only.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ftcluster_common.data.class_names import (
    as_word,
    is_list_as_text,
    look_key,
)
from ftcluster_common.data.column_uses import UNREAD, Columns
from ftcluster_common.data.columns import as_flag
from ftcluster_common.data.numbers import has_comma
from ftcluster_common.data.rows import Places, Row
from ftcluster_common.tasks.registry import spec_of
from ftcluster_common.tasks.spec import Options, TaskSpec

SHOWN = 4  # number of examples in a note
NO_LABEL = frozenset(
    ("n/a", "na", "#n/a", "#na", "<na>", "n.a.", "n.a", "none", "null", "nil", "nan", "undefined",
     "missing", "unlabeled", "unlabelled", "unannotated", "tbd", "todo", "to do", "no label",
     "not labeled", "not labelled", "not annotated")
)  # fmt: skip
SEPARATORS = re.compile(r"[,;|]")  # separate classes if the parts occur in other cells
ANY_SEPARATORS = re.compile(r"[,;|/+&]")  # separate classes that also occur alone in other cells
REJECTED = frozenset(
    ("reject", "rejected", "ignore", "ignored", "discard", "discarded", "skip", "skipped",
     "cancelled", "canceled")
)  # fmt: skip
FLAGS = re.compile(
    r"(is_?|was_?)?(reject|ignor|discard|skipp?|cancell?|exclud|delet)(e?d)?", re.IGNORECASE
)
MEDIA = re.compile(r"(image|audio|video|picture|photo)s?(_(path|url|file)s?)?", re.IGNORECASE)
ALIKE = "with classes that look alike, trained as different classes"
LISTS = (
    "if a row may have several classes, set label_separator, or use lists in JSON, JSONL or "
    "Parquet, or columns of 0 and 1"
)


class RowReview:
    """Counter of suspicious rows in a data set.

    Args:
        options: values of the task's fields.
        uses: names of the columns, by use.
        names: class names in the order of their numbers; empty if the data contain no names.
    """

    def __init__(self, options: Options, uses: Columns, names: Sequence[str] = ()) -> None:
        self._options, self._names = options, names
        self._uses, self._spec = uses, spec_of(options)
        self._has_classes = self._spec.has_classes(options)
        self._unread = tuple(uses.get(UNREAD, ()))
        self._classes: Counter[str] = Counter()
        self._rejected: Counter[str] = Counter()
        self._media: Counter[str] = Counter()
        self._padded: Counter[str] = Counter()
        self._repeated: Counter[str] = Counter()
        self._unlabelled = 0
        self._skipped: defaultdict[str, Places] = defaultdict(Places)
        self._skips = type(self._spec).skip_reason is not TaskSpec.skip_reason

    @property
    def is_needed(self) -> bool:
        """True if rows contain classes or unread columns, or if the task may skip rows."""
        return bool(self._unread) or self._has_classes or self._skips

    def add(self, row: Row, place: str = "") -> bool:
        """Count a row, and return False if the task skips the row.

        Args:
            place: file and line of the row, which the notes show.
        """
        if reason := self._spec.skip_reason(self._options, self._uses, row):
            self._skipped[reason].add(place)
            return False
        rejections = (name for name in self._unread if _is_rejection(name, row.get(name)))
        self._rejected.update(f"{name}: {as_word(row[name])}" for name in [*rejections][:1])
        for name in self._unread:
            if MEDIA.fullmatch(name) and row.get(name) not in (None, "", [], {}):
                self._media[name] += 1
        if not self._has_classes:
            return True
        labels = self._spec.labels_of(self._options, self._uses, row)
        labels = [label for label in labels if as_word(label)]
        label_columns = self._uses.get("label", ())
        if not labels and len(label_columns) == 1 and row.get(label_columns[0]) in ("", None):
            self._unlabelled += 1
        class_names = [self._name(label) for label in labels]
        self._classes.update({*class_names})
        padded = {
            str(label_text)
            for label_text in labels
            if isinstance(label_text, str) and label_text != label_text.strip()
        }
        self._padded.update(sorted(padded)[:1])  # at most one per row, so that each row counts once
        repeated = sorted(word for word, count in Counter(class_names).items() if count > 1)
        self._repeated.update(repeated[:1])
        return True

    def _name(self, label: Any) -> str:
        word = as_word(label)
        number = int(word) if word.isascii() and word.isdecimal() and len(word) < SHOWN else -1
        return self._names[number] if 0 <= number < len(self._names) else word

    def notes(self, split: str) -> list[str]:
        """Return one line for each kind of problem, with the number of rows and the remedy."""
        counts_by_class = self._classes
        kinds = [
            (
                self._rejected,
                "that an annotator rejected, used like all others",
                "remove them from the data if this is a mistake",
            ),
            *(
                (
                    group,
                    ALIKE,
                    "write them alike if they are the same",
                )
                for group in alike_names(counts_by_class)
            ),
            (
                self._padded,
                "with blanks around the label, which are not read",
                "remove the blanks if other programs read the data",
            ),
            (
                _only(counts_by_class, no_labels(counts_by_class)),
                "with a class that looks like no label",
                "remove these rows if they have none",
            ),
            (
                _only(counts_by_class, decimal_commas(counts_by_class)),
                "with a number with a comma as class",
                "to predict numbers, write a decimal point and set regression=true",
            ),
            (
                _only(counts_by_class, filter(is_list_as_text, counts_by_class)),
                "with a list written as text, trained as one class",
                LISTS,
            ),
            (
                _only(counts_by_class, combinations(counts_by_class)),
                "with several classes in one text, trained as a separate class",
                LISTS,
            ),
            (
                self._repeated,
                "with the same class twice, which counts once",
                "remove the second",
            ),
        ]
        rows_notes = [
            f"{split}: {_rows(places.count)} {reason} ({places})"
            for reason, places in self._skipped.items()
        ]
        if self._unlabelled:
            rows_notes.append(
                f"{split}: {_rows(self._unlabelled)} with an empty cell, read as none of the "
                "classes; to skip them: skip_incomplete=true"
            )
        return rows_notes + [
            f"{split}: {_rows(counts.total())} {what}: {_shown(counts)}; {remedy}"
            for counts, what, remedy in kinds
            if counts
        ]


def _is_rejection(column: str, cell: Any) -> bool:
    if isinstance(cell, str) and cell.strip().lower() in REJECTED:
        return True
    return bool(FLAGS.fullmatch(column)) and as_flag(cell) is True


def alike_names(counts: Mapping[str, int]) -> list[Counter[str]]:
    """Return groups of class names that look the same to a reader, with their row counts.

    >>> alike_names({"Good": 2, "good": 1, "bad": 4})
    [Counter({'Good': 2, 'good': 1})]
    """
    groups: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for name, count in counts.items():
        groups[look_key(name)][name] = count
    return [group for group in groups.values() if len(group) > 1]


def no_labels(names: Iterable[str]) -> list[str]:
    """Return the class names that probably mean a missing label.

    If some names contain letters or digits, a name without any counts as missing too. If no name
    does, names such as + and - may be real classes.

    >>> no_labels(["good", "N/A", "?"]), no_labels(["+", "-"])
    (['N/A', '?'], [])
    """
    every = list(names)
    lettered = [name for name in every if any(map(str.isalnum, name))]
    plain = [name for name in every if name.isascii() and name not in lettered] if lettered else []
    return [name for name in every if name.lower() in NO_LABEL or name in plain]


def decimal_commas(names: Iterable[str]) -> list[str]:
    """Return the names that are numbers with a decimal comma.

    >>> decimal_commas(["3,5", "4,0", "a"]), decimal_commas(["1,2", "1", "2"])
    (['3,5', '4,0'], [])
    """
    every = {*names}
    numbers = [name for name in every if has_comma(name)]
    return sorted(name for name in numbers if not {*name.split(",")} <= every)


def _parts(separators: "re.Pattern[str]", name: str) -> list[str]:
    """Split a name and strip its parts.

    The pattern does not match blanks around separators, because that would take quadratic time.
    """
    return [part.strip() for part in separators.split(name)]


def combinations(names: Iterable[str]) -> list[str]:
    """Return the names that are combinations of several class names.

    >>> combinations(["a", "b", "a, b", "toys, games", "and/or"])
    ['a, b']
    >>> combinations(["a; b", "b; c", "c; a"])
    ['a; b', 'b; c', 'c; a']
    """
    every = {*names}
    numbers = {*decimal_commas(every)}
    split = {name: _parts(SEPARATORS, name) for name in every if not is_list_as_text(name)}
    uses = Counter(part for name, some in split.items() if name not in numbers for part in {*some})
    combined = []
    for name, some in split.items():
        alone = [part for part in _parts(ANY_SEPARATORS, name) if part]
        recur = len(some) > 1 and all(some) and (
            any(part in every for part in some) or all(uses[part] > 1 for part in some)
        )  # fmt: skip
        if name not in numbers and (recur or (len(alone) > 1 and {*alone} <= every - {name})):
            combined.append(name)
    return sorted(combined)


def _only(counts: Counter[str], names: Iterable[str]) -> Counter[str]:
    return Counter({name: counts[name] for name in names})


def _rows(count: int) -> str:
    return f"{count} row{'s' * (count != 1)}"


def _shown(counts: Counter[str]) -> str:
    """Return the most frequent names with their counts, escaping invisible characters."""
    first = ", ".join(f"{quoted(name)} {count}" for name, count in counts.most_common(SHOWN))
    return first + (", ..." if len(counts) > SHOWN else "")


def quoted(name: str) -> str:
    """Return a name in quotes, with escapes for all characters that are not ASCII.

    The escapes show the difference between names that look the same.

    >>> print(quoted("good"), quoted("good\\u200b"))
    'good' 'good\\u200b'
    """
    return ascii(name)
