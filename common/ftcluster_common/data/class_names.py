"""Reads, compares and matches the names of classes. Standard library only."""

import math
import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ftcluster_common.data.numbers import is_decimal
from ftcluster_common.data.rows import DataError

MOST_CLASSES = 1000
SHOWN = 8
WHOLE = re.compile(r"-?[0-9]+(\.0*)?")
NUMBER = re.compile(r"\+?(-?)([0-9]+)(?:\.([0-9]*))?")
GENERIC = re.compile(r"LABEL_\d+")  # names that transformers gives to unnamed classes
# lowercase Cyrillic and Greek letters, and the Latin letters that look like them or like their
# capitals
LETTERS = str.maketrans("авекмнорстухіѕјһαεζηικμνορτυχ", "abekmhopctyxisjhaezhikmnoptyx")
QUOTES = "\"'`\u201c\u201d\u201e\u2018\u2019\u00ab\u00bb"
LIST = re.compile(r"\[.*\]|\(.*,.*\)|\{.*\}", re.DOTALL)


def as_word(label: Any) -> str:
    """Return the class name that a label stands for; "" if the label is empty.

    >>> as_word(" good "), as_word(True), as_word(2.0), as_word(None)
    ('good', 'true', '2', '')
    """
    if label is None or (isinstance(label, float) and math.isnan(label)):
        return ""
    if isinstance(label, bool):
        return str(label).lower()
    # pandas turns integers into floats if the column has NaN
    whole = isinstance(label, float) and label.is_integer()
    return str(int(label)) if whole else str(label).strip()


def name_key(name: str) -> str:
    """Return a key that is equal for names that people read as the same name.

    Such names differ only in case, white space, Unicode form, or zero-width characters.

    >>> name_key("New\\u00a0York ") == name_key("new york") == name_key("\\u200bNEW  YORK")
    True
    """
    plain = unicodedata.normalize("NFKC", name)
    visible = "".join(letter for letter in plain if unicodedata.category(letter) != "Cf")
    return unicodedata.normalize("NFKC", " ".join(visible.split()).casefold())


def look_key(name: str) -> str:
    """Return a key that is equal for names that look alike.

    Such names have letters that print alike, are equal numbers, or differ only in quotes.

    >>> look_key("c\\u043ede") == look_key("Code"), look_key("1.0") == look_key("01")
    (True, True)
    >>> look_key("'good'") == look_key("good")
    True
    """
    key = name_key(name)
    number = NUMBER.fullmatch(key)
    if number:
        return f"{number[1]}{number[2].lstrip('0')}.{(number[3] or '').rstrip('0')}"
    return (key.strip(QUOTES) or key).translate(LETTERS)


def match_names(wanted: Sequence[str], names: Sequence[str]) -> list[int | None]:
    """Return the index in `names` of each wanted name; None if `names` does not contain it.

    If no name is equal, a wanted name matches the only name with the same `name_key`.

    >>> match_names(["Neutral", "entailment"], ["ENTAILMENT", "NEUTRAL", "CONTRADICTION"])
    [1, 0]
    >>> match_names(["a", "A"], ["a", "b"])
    [0, None]
    """
    exact = {name: number for number, name in reversed([*enumerate(names)])}
    alike: defaultdict[str, list[int]] = defaultdict(list)
    for number, name in enumerate(names):
        alike[name_key(name)].append(number)
    asked: defaultdict[str, int] = defaultdict(int)
    for name in wanted:
        asked[name_key(name)] += 1
    indices: list[int | None] = []
    for name in wanted:
        near = alike.get(name_key(name), [])
        unique = len(near) == 1 and asked[name_key(name)] == 1
        indices.append(exact[name] if name in exact else near[0] if unique else None)
    return indices


def are_unnamed(names: Sequence[str]) -> bool:
    """Return True if classes are called 0, 1, ... or LABEL_0, LABEL_1, ... (transformers).

    >>> are_unnamed(["LABEL_0", "LABEL_1"]), are_unnamed(["0", "1"]), are_unnamed(["1", "2"])
    (True, True, False)
    """
    numbers = [str(number) for number in range(len(names))]
    return all(map(GENERIC.fullmatch, names)) or sorted(names) == sorted(numbers)


def few(names: Sequence[str]) -> str:
    """Return the first names, separated by commas, for a message."""
    return ", ".join(names[:SHOWN]) + (" ..." if len(names) > SHOWN else "")


def is_list_as_text(word: str) -> bool:
    """Return True if a label is a list (or an object) that was written into a cell as a string.

    >>> is_list_as_text("['a', 'b']"), is_list_as_text("[SEP]"), is_list_as_text("{'a': 1}")
    (True, False, True)
    """
    inside = word[1:-1].strip()
    quoted = inside[:1] in ("'", '"') or "," in inside or not inside or inside.isdigit()
    return bool(LIST.fullmatch(word)) and quoted


def flat_labels(cells: Iterable[Any]) -> Iterator[Any]:
    """Return the labels of cells that each hold one label or a list of labels."""
    return (label for cell in cells for label in (cell if isinstance(cell, list) else [cell]))


def find_labels(labels: Iterable[Any], column: str, trains: bool = True) -> list[str]:
    """Return the distinct labels of a column: numbers in numerical order, words alphabetically.

    Args:
        labels: one label or a list of labels for each row.
        trains: True if a model is trained on these labels; False if a trained model defines the
            classes.

    Raises:
        DataError: there are too many distinct labels for classes, labels have fractions, or the
            column mixes words or lists with other labels. The message says what to do.
    """
    rows, kinds, words, lists = 0, set(), set(), set()
    for label in labels:
        rows += 1
        lists.add(isinstance(label, list))
        for item in label if isinstance(label, list) else [label]:
            words.add(as_word(item))
            kinds.add(isinstance(item, str | bool))
    if "" in words:
        raise DataError(
            f"a row has no label in column {column}; to skip such rows, set skip_incomplete=true"
        )
    if len(lists) > 1:
        raise DataError(
            f"column {column} mixes lists of labels and single labels; use one form in all rows"
        )
    if words and all(map(is_list_as_text, words)):
        raise DataError(
            f"the labels in column {column} are lists written as strings, such as {min(words)}; "
            "for several classes per row, use lists in JSON, JSONL or Parquet, or a column of 0 "
            "and 1 for each class"
        )
    if len(kinds) > 1:
        raise DataError(f"column {column} mixes words and numbers as labels; use only one of them")
    name = "set label_column=NAME to name the column with the class"
    name += ", or set regression=true to predict numbers" * trains
    numbers = all(map(is_decimal, words))
    if numbers and not all(map(WHOLE.fullmatch, words)):
        raise DataError(
            f"the labels in column {column} are numbers with fractions, not classes; {name}"
        )
    if len(words) > min(MOST_CLASSES, max(rows / 2, SHOWN)):
        raise DataError(
            f"column {column} contains {len(words)} distinct labels in {rows} rows, too many for "
            f"classes; {name}"
        )
    return sorted(words, key=lambda word: (float(word) if numbers else 0, word))
