"""Text of hosts, made safe for a terminal."""

import re
from typing import Any

_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")  # and bold, underlined ...: SGR of ECMA-48
# control characters other than tabs and line feeds
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def printable(value: Any) -> Any:
    """The same data without colours, and with the control characters in its texts escaped.

    >>> printable({"msg": ["\\x1b[1mbold\\x1b[0m \\x1b[2J", 1]})
    {'msg': ['bold \\\\x1b[2J', 1]}
    """
    if isinstance(value, str):
        lines = _COLOUR.sub("", value).replace("\r\n", "\n")
        return _CONTROL.sub(lambda found: f"\\x{ord(found.group()):02x}", lines)
    if isinstance(value, list | tuple):
        return [printable(one) for one in value]
    if isinstance(value, dict):
        return {printable(name): printable(one) for name, one in value.items()}
    return value
