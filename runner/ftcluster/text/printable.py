"""Makes text from untrusted sources safe for terminals and generated files.

Names of columns, files, models and hosts come from untrusted sources. This module defines which of
their characters stay unchanged. `terminal`, `comments` and `shell_words` use this module.
"""

import re
from typing import Any

_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")  # SGR sequences of ECMA-48: colours, bold and underlined
RESET = "\x1b[0m"
# Control characters except tab and line feed; characters that change the direction of text
# (UAX #9) or end a line; halves of a surrogate pair, which cannot be printed.
_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
# YAML readers refuse the last three even in comments (byte order mark and two noncharacters).
_NOT_PLAIN = re.compile(rf"[\t\n\ufeff\ufffe\uffff]|{_CONTROL.pattern}")
# A colour matches as a whole, so that its escape character is not replaced.
_IN_OUTPUT = re.compile(rf"(?P<colour>{_COLOUR.pattern})|\r|{_CONTROL.pattern}")
_SHORT = {"\t": "\\t", "\n": "\\n", "\r": "\\r"}


def _escape(match: "re.Match[str]") -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def is_unicode(text: str) -> bool:
    """Return True if a path or argument is valid UTF-8, so that it has no surrogates (PEP 383)."""
    return not any("\ud800" <= letter <= "\udfff" for letter in text)


def is_plain(text: str) -> bool:
    """Return True if a string is a single line without control characters and direction marks."""
    return not _NOT_PLAIN.search(text)


def printable(value: Any) -> Any:
    """Remove the colours and escape the control characters in all strings of a value.

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


def in_one_line(text: str) -> str:
    r"""Escape all characters of a string that end a line or control a terminal.

    >>> print(in_one_line("a\nb\x85c\u2028d\x1b[2J"))
    a\nb\x85c\u2028d\x1b[2J
    """
    return _NOT_PLAIN.sub(lambda match: _SHORT.get(match[0]) or _escape(match), text)


def script_output(text: str) -> str:
    r"""Make the output of a script safe for a terminal; keep colours and carriage returns.

    Progress bars need carriage returns. The colours are reset at the end of the text.

    >>> script_output("\r50 % \x1b[31mred \x1b[2J")
    '\r50 % \x1b[31mred \\x1b[2J\x1b[0m'
    """
    if text.isascii() and text.isprintable():
        return text
    coloured = False

    def shown(match: "re.Match[str]") -> str:
        nonlocal coloured
        if match["colour"]:
            coloured = True
            return match[0]
        return match[0] if match[0] == "\r" else _escape(match)

    safe = _IN_OUTPUT.sub(shown, text)
    return safe + RESET if coloured else safe
