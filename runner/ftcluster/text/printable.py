"""Text of hosts, made safe for a terminal."""

import re
from typing import Any

_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")  # and bold, underlined ...: SGR of ECMA-48
# Control characters other than tabs and line feeds; what turns the direction of the text around it
# (UAX #9), or ends a line elsewhere; halves of a surrogate pair, which cannot be printed.
_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def _escape(match: "re.Match[str]") -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def is_unicode(text: str) -> bool:
    """Whether a path or argument is UTF-8; other bytes are surrogates (PEP 383)."""
    return not any("\ud800" <= letter <= "\udfff" for letter in text)


def printable(value: Any) -> Any:
    """Return data without colours, and with the control characters in its texts escaped.

    >>> printable({"msg": ["\\x1b[1mbold\\x1b[0m \\x1b[2J", 1]})
    {'msg': ['bold \\\\x1b[2J', 1]}
    """
    if isinstance(value, str):
        if value.isascii() and value.isprintable():
            return value
        lines = _COLOUR.sub("", value).replace("\r\n", "\n")
        return _CONTROL.sub(_escape, lines)
    if isinstance(value, (int, float)):
        return value
    if isinstance(value, (list, tuple)):
        return [printable(part) for part in value]
    if isinstance(value, dict):
        return {printable(name): printable(part) for name, part in value.items()}
    return value
