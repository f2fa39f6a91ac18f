"""Numbers as people write them, in data and on a command line. Standard library only.

Python's `float` and `int` also read "1_000", "inf", "nan", hexadecimal and the digits of every
script. Nobody writes these as a label, a score or a setting, so here they are texts.
"""

import re

WHOLE = re.compile(r"[-+]?[0-9]{1,300}")
DECIMAL = re.compile(
    r"[-+]?(?:[0-9]{1,300}(?:\.[0-9]{0,300})?|\.[0-9]{1,300})(?:[eE][-+]?[0-9]{1,4})?"
)

COMMA = re.compile(r"[-+]?[0-9]+,[0-9]+")


def is_decimal(text: str) -> bool:
    """Return True if a text is a finite number in ASCII digits, with blanks around it allowed.

    >>> [is_decimal(text) for text in ("3", " -1.5e-4 ", ".5", "1_000", "inf", "0x10", "1e999")]
    [True, True, True, False, False, False, False]
    """
    return bool(DECIMAL.fullmatch(text.strip())) and abs(float(text)) != float("inf")


def read_decimal(text: str) -> int | float | None:
    """Return the number that a text is: an int if it is written as one; None if it is none.

    >>> read_decimal("16"), read_decimal("2e-5"), read_decimal("1_6")
    (16, 2e-05, None)
    """
    if not is_decimal(text):
        return None
    return int(text) if WHOLE.fullmatch(text.strip()) else float(text)


def has_decimal_comma(text: str) -> bool:
    """Return True if a text is a number with a comma in place of the point.

    >>> has_decimal_comma(" 3,5"), has_decimal_comma("3.5"), has_decimal_comma("1,2,3")
    (True, False, False)
    """
    return bool(COMMA.fullmatch(text.strip()))
