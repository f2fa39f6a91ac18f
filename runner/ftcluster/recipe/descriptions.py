"""Read the descriptions of a dataclass's fields from `Attributes:` in its docstring."""

import inspect
import re

_ENTRY = re.compile(r"    (\w+): (.+)")


def descriptions_of(kind: type) -> dict[str, str]:
    """Return the descriptions of a dataclass's fields by name, including inherited fields."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        found |= attributes(base.__doc__ or "")
    return found


def attributes(docstring: str) -> dict[str, str]:
    """Return the entries of a docstring's `Attributes:` section by name, each as one line.

    >>> attributes("A page.\\n\\n    Attributes:\\n        size: width in\\n            points.\\n")
    {'size': 'width in points.'}
    """
    _, _, section = inspect.cleandoc(docstring).partition("\nAttributes:\n")
    found: dict[str, str] = {}
    name = ""
    for line in section.splitlines():
        if line and not line.startswith(" "):
            break
        if entry := _ENTRY.fullmatch(line):
            name = entry[1]
            found[name] = entry[2]
        elif name and line.strip():
            found[name] += f" {line.strip()}"
    return found
