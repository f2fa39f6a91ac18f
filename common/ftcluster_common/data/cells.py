"""Parses lists and objects that were written into a cell as a string: in JSON or Python notation.

Programs write lists into CSV as JSON, and pandas writes them as Python does: "['a', 'b']".
Standard library only.
"""

import ast
from typing import Any

from ftcluster_common.given_files import parse_json

MOST_CHARACTERS = 1 << 16  # limit for Python notation: its parser needs up to 1 kB each


def read_cell(cell: Any) -> Any:
    """Return the list or object that a string contains; other cells are returned unchanged.

    Python notation is parsed as literals only: names and calls are not evaluated.

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
