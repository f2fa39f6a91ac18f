"""The columns of a data set by their use in a task, and the columns that the task ignores."""

from collections.abc import Iterable, Mapping
from itertools import islice

from ftcluster_common.data.columns import LOOKED_AT
from ftcluster_common.data.rows import Row

UNREAD = "not read"
WORDS = 3  # minimum number of words in a text; numbers, dates, ids and names have fewer

Columns = Mapping[str, tuple[str, ...]]  # column names by use


def unread_texts(columns: Columns, rows: Iterable[Row]) -> list[str]:
    """Return the ignored columns whose first cells mostly hold texts.

    >>> rows = [{"id": "a 1", "text": "so it is", "body": "It is not so."}]
    >>> unread_texts({"text": ("text",), UNREAD: ("id", "body")}, rows)
    ['body']
    """
    ignored = []
    first = list(islice(rows, LOOKED_AT)) if UNREAD in columns else []
    for name in columns.get(UNREAD, ()):
        cells = [row[name] for row in first if row.get(name) not in ("", None)]
        texts = [cell for cell in cells if isinstance(cell, str) and _is_text(cell)]
        if 2 * len(texts) > len(cells):
            ignored.append(name)
    return ignored


def _is_text(cell: str) -> bool:
    # Chinese and Japanese texts have no spaces: count each character as a word
    words = cell.split()
    return len(words) >= WORDS or sum(ord(letter) > 0x2E80 for letter in cell) > 2 * WORDS
