"""Text from hosts, safe to show on a terminal."""

import re
from typing import Any

# a terminal's escapes and other controls but for tabs and the ends of lines
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def printable(value: Any) -> Any:
    """The same data with controls in its texts written out, so that no terminal obeys them.

    >>> printable({"msg": ["\\x1b[2J", 1]})
    {'msg': ['\\\\x1b[2J', 1]}
    """
    if isinstance(value, str):
        lines = value.replace("\r\n", "\n")
        return _CONTROL.sub(lambda found: f"\\x{ord(found.group()):02x}", lines)
    if isinstance(value, list | tuple):
        return [printable(one) for one in value]
    if isinstance(value, dict):
        return {printable(name): printable(one) for name, one in value.items()}
    return value
