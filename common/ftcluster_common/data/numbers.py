"""Reads numbers as people write them, in data and on a command line. Standard library only.

Python's `float` and `int` also read "1_000", "inf", "nan", hexadecimal and the digits of every
script. Nobody writes labels, scores or settings in these forms, so this module does not read them
as numbers.
"""

import math
import re
import unicodedata
from typing import Any

WHOLE = re.compile(r"[-+]?[0-9]{1,300}")
DECIMAL = re.compile(
    r"[-+]?(?:[0-9]{1,300}(?:\.[0-9]{0,300})?|\.[0-9]{1,300})(?:[eE][-+]?[0-9]{1,4})?"
)
# a decimal comma, or separators of thousands: 1,5 and 1.234,5 and 1 500
SEPARATED = re.compile(r"[-+]?[0-9]+(?:[., '][0-9]{3})*[., ][0-9]+")
HEXADECIMAL = re.compile(r"[-+]?0[xob][0-9a-f]+")


def is_decimal(text: str) -> bool:
    """Return True if a string is a finite number in ASCII digits; blanks around it are allowed.

    >>> [is_decimal(text) for text in ("3", " -1.5e-4 ", ".5", "1_000", "inf", "0x10", "1e999")]
    [True, True, True, False, False, False, False]
    """
    return bool(DECIMAL.fullmatch(text.strip())) and abs(float(text)) != float("inf")


def read_decimal(text: str) -> int | float | None:
    """Return the number that a string contains, as an int if it is written as one; else None.

    >>> read_decimal("16"), read_decimal("2e-5"), read_decimal("1_6")
    (16, 2e-05, None)
    """
    if not is_decimal(text):
        return None
    return int(text) if WHOLE.fullmatch(text.strip()) else float(text)


def has_comma(text: str) -> bool:
    """Return True if a string is a number with a comma as decimal sign or between thousands.

    >>> has_comma(" 3,5"), has_comma("1,500"), has_comma("3.5"), has_comma("1,2,3")
    (True, True, False, False)
    """
    return "," in text and bool(SEPARATED.fullmatch(text.strip()))


def as_number(cell: Any) -> float | None:
    """Return a cell's finite number, which may be a string; None for other cells, such as True.

    >>> as_number(" 2.5 "), as_number(3), as_number("1_000"), as_number(True), as_number(None)
    (2.5, 3.0, None, None, None)
    """
    if isinstance(cell, str) and not is_decimal(cell):
        return None
    try:
        number = math.nan if isinstance(cell, bool) else float(cell)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def why_no_number(cell: Any) -> str:
    """Return why a cell is not a number, and how to write the number if its value is clear.

    >>> why_no_number("1,500")
    'not a number: use a decimal point, and no separator between thousands'
    >>> why_no_number("1_000"), why_no_number("-inf"), why_no_number("good")
    ('not a number: remove the underscores', 'not a finite number', 'not a number')
    """
    plain = unicodedata.normalize("NFKC", str(cell)).strip().lower().replace("\u2212", "-")
    if plain.lstrip("+-") in ("inf", "infinity", "nan") or _is_too_large(plain):
        return "not a finite number"
    if "_" in plain and is_decimal(plain.replace("_", "")):
        return "not a number: remove the underscores"
    if isinstance(cell, str) and not is_decimal(cell) and is_decimal(plain):
        return "not a number: write it with the digits 0 to 9 and the signs + and -"
    if SEPARATED.fullmatch(plain):
        return "not a number: use a decimal point, and no separator between thousands"
    if HEXADECIMAL.fullmatch(plain):
        return "not a number: write it as a decimal number"
    return "not a number"


def _is_too_large(text: str) -> bool:
    return bool(DECIMAL.fullmatch(text)) and not is_decimal(text)
