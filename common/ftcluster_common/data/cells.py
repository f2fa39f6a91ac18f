"""Lists and objects that were written into a cell as text: JSON, or Python's notation.

Programs write lists into CSV as JSON, and pandas writes them as Python does: "['a', 'b']".
Standard library only.
"""

import ast
from typing import Any

from ftcluster_common.given_files import parse_json

MOST_CHARACTERS = 1 << 16  # of Python's notation: its parser needs up to 1 kB for each of them


def read_cell(cell: Any) -> Any:
    """Return the list or the object in a cell of text; other cells stay as they are.

    Python's notation is read as data: only literals, no names or calls.

    >>> read_cell('["a", "b"]'), read_cell("['a', None]"), read_cell("[SEP] so"), read_cell(3)
    (['a', 'b'], ['a', None], '[SEP] so', 3)
    """
    if not isinstance(cell, str):
        return cell
    text = cell.strip()
    if text[:1] + text[-1:] not in ("[]", "{}"):
        return cell
    try:
        return parse_json(text)
    except ValueError:
        if len(text) > MOST_CHARACTERS:
            return cell
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return cell
    return value if isinstance(value, list | dict) else cell
