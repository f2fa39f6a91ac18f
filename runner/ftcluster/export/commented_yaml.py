"""YAML with comments: PyYAML writes none."""

import re
from collections.abc import Iterable
from typing import Any

import yaml

COMMENT = "#"  # how the key of a comment begins; its value is the text


class _Dumper(yaml.SafeDumper):
    """Texts of several lines are literal blocks, and nothing is an alias."""

    def ignore_aliases(self, _data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def dump(documents: Iterable[Any]) -> str:
    """YAML documents whose keys keep their order.

    A key that begins with `#` is a comment on the key after it:

    >>> print(dump([{"#1": "of each pod", "cpu": "4"}]), end="")
    # of each pod
    cpu: '4'
    """
    texts = [
        yaml.dump(one, Dumper=_Dumper, sort_keys=False, width=2**20, allow_unicode=True)
        for one in documents
    ]
    lines = "---\n".join(texts).splitlines()
    return "\n".join(map(_line, lines)) + "\n"


def _line(line: str) -> str:
    """A line of YAML, or the comment that it has as a key."""
    found = re.fullmatch(r"( *(?:- )?)'#\d*': (.*)", line)
    return f"{found[1]}# {yaml.safe_load(found[2])}" if found else line
