"""Parse the values of `key=value` arguments according to the type of the recipe's field."""

import re
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from ftcluster.recipe.yaml_loader import read_value
from ftcluster_common.data.data_sets import DataSet
from ftcluster_common.data.numbers import read_decimal

SWITCHES = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
QUOTES = "\"'"
# an element of a list: in quotes, or everything up to the next comma
ELEMENT = re.compile(r"""(?:^|,)\s*("[^"]*"|'[^']*'|[^,]*?)\s*(?=,|$)""")
NO_VALUE = object()


def read_override(raw: str, kind: Any) -> Any:
    """Return the value of `raw` for a field of type `kind`.

    Unquoted text is taken literally, including blanks. Quoted text is read as YAML. The elements
    of a list are separated by commas, with or without brackets. `null` means None, and numbers
    consist of ASCII digits. A value that does not fit the type is returned as a string, so that the
    field's check refuses it.

    >>> read_override("query: ", str | None), read_override("null", str | None)
    ('query: ', None)
    >>> read_override("384,128,64", tuple[int, ...]), read_override("1_6", int)
    ([384, 128, 64], '1_6')
    """
    if raw.strip() in ("null", "~"):
        return None
    value = _value(raw, kind)
    return raw if value is NO_VALUE else value


def _value(raw: str, kind: Any) -> Any:
    values = (_read(raw, alternative) for alternative in _alternatives(kind))
    return next((value for value in values if value is not NO_VALUE), NO_VALUE)


def _alternatives(kind: Any) -> Iterator[Any]:
    """Yield the types of a union. The type str comes last, because every value fits it."""
    if typing.get_origin(kind) in (types.UnionType, typing.Union):
        members = [member for part in typing.get_args(kind) for member in _alternatives(part)]
        yield from sorted(members, key=lambda member: member is str)
    else:
        yield kind


def _read(raw: str, kind: Any) -> Any:
    """Return the value of `raw` for a type that is not a union; NO_VALUE if it does not fit."""
    origin, text = typing.get_origin(kind), raw.strip()
    if origin is Literal:
        return _choice(_unquoted(text), typing.get_args(kind))
    if kind is bool:
        return SWITCHES.get(text.lower(), NO_VALUE)
    if kind in (int, float):
        number = read_decimal(text)
        return NO_VALUE if number is None else number
    if origin is tuple and typing.get_args(kind)[0] is DataSet:
        # a path may contain commas, so a list of data sets must be in brackets
        value = read_value(text) if text[:1] + text[-1:] in ("[]", "{}") else NO_VALUE
        return value if isinstance(value, list | dict) else NO_VALUE
    if origin is tuple:
        inside = text[1:-1] if text[:1] + text[-1:] == "[]" else text
        inner = typing.get_args(kind)[0]
        elements = ELEMENT.findall(inside) if inside.strip() else []
        values = [_value(element, inner) for element in elements]
        return NO_VALUE if NO_VALUE in values or "" in elements else values
    if origin is Mapping:
        value = read_value(text)
        return value if isinstance(value, dict) else NO_VALUE
    return _unquoted(raw) if kind is str else NO_VALUE


def _choice(text: str, allowed: Sequence[Any]) -> Any:
    switch = SWITCHES.get(text.lower())
    if switch is False and "no" in allowed and False not in allowed:
        return "no"  # YAML 1.1 reads `no` as false, also in files
    return next((value for value in allowed if value in (text, switch)), NO_VALUE)


def _unquoted(raw: str) -> str:
    """Return a string without the quotes that enclose it. Other quotes are kept."""
    if len(raw) > 1 and raw[0] in QUOTES and raw[-1] == raw[0]:
        value = read_value(raw)
        if isinstance(value, str):
            return value
    return raw
