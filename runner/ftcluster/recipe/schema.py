"""Check the keys of a recipe by the types and limits of a dataclass's fields."""

import math
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, fields
from typing import Any, Literal

from ftcluster.recipe.descriptions import descriptions_of
from ftcluster.recipe.overrides import read_override
from ftcluster_common.data.data_sets import DataSet
from ftcluster_common.data.numbers import is_decimal, why_no_number
from ftcluster_common.limits import Limits

MOST = 1 << 63
WEIGHTS = Mapping[str, float]
DATA_SETS = tuple[DataSet, ...]


@dataclass(frozen=True)
class Key:
    """One key of a recipe.

    Attributes:
        name: name of the key with its section, such as training.seed.
        kind: type of the value.
        limits: allowed range of a number, or maximum length of a list.
        default: default value; MISSING if a recipe must contain the key.
        description: description of the field from the docstring of its dataclass; "" for none.
    """

    name: str
    kind: Any
    limits: Limits
    default: Any
    description: str = ""

    @property
    def required(self) -> bool:
        """True if a recipe must have the field."""
        return self.default is MISSING

    @property
    def default_text(self) -> str:
        """The default value, as written in a recipe."""
        return in_recipe(self.default)

    @property
    def json_schema(self) -> dict[str, Any]:
        """The JSON Schema of the allowed values."""
        return _json_schema(self.kind, self.limits)

    def convert(self, value: Any) -> Any:
        """Convert a value that was read from YAML to the type of the field.

        Raises:
            ValueError: the value has a wrong type or exceeds the limits. The message lists the
                allowed values.
        """
        if value is False and _says_no(self.kind):
            return "no"
        if isinstance(value, list) and DATA_SETS in typing.get_args(self.kind):
            if not value:
                raise ValueError(f"'{self.name}' must be {self.meaning}, got {value!r}")
            return tuple(value)  # `data_sets` reads the entries
        if isinstance(value, dict) and WEIGHTS not in typing.get_args(self.kind):
            wrong = next((name for name in value if not str(name).isidentifier()), None)
            if wrong is not None:
                raise ValueError(f"the keys of '{self.name}' must be names, got {wrong!r}")
        if isinstance(value, str) and value.strip()[:1] != "[" and not _matches(value, self.kind):
            parts = read_override(value, self.kind)  # a list with commas, as on command lines
            value = parts if isinstance(parts, list) else value
        if isinstance(value, int) and _matches([value], self.kind):
            value = [value]
        if not _matches(value, self.kind):
            shown = "null" if value is None else f"{value!r:.200}"
            if self._is_number and isinstance(value, str):
                if is_decimal(value):
                    shown += f": write {value.strip()} without quotes"
                elif (why := why_no_number(value)) != "not a number":
                    shown += f", which is {why}"
            raise ValueError(f"'{self.name}' must be {self.meaning}, got {shown}")
        if isinstance(value, list):
            most = self.limits.at_most
            if not value or (most is not None and len(value) > most):
                raise ValueError(f"'{self.name}' must be {self.meaning}, got {value!r}")
            return tuple(value)
        if isinstance(value, int | float) and not isinstance(value, bool):
            self._check_number(value)
        return float(value) if self.kind is float else value

    @property
    def _is_number(self) -> bool:
        return bool({int, float} & {self.kind, *typing.get_args(self.kind)})

    def _check_number(self, value: float) -> None:
        low, above, high = self.limits.at_least, self.limits.above, self.limits.at_most
        # Python's integers are unbounded
        if (isinstance(value, int) and abs(value) > MOST) or not math.isfinite(value):
            raise ValueError(f"'{self.name}' must be {self.meaning}, got {value!r:.30}")
        if low is not None and high is not None and not low <= value <= high:
            raise ValueError(f"'{self.name}' must be from {low:g} to {high:g}, got {value!r}")
        if low is not None and value < low:
            raise ValueError(f"'{self.name}' must be at least {low:g}, got {value!r}")
        below = self.limits.below
        if below is not None and value >= below:
            raise ValueError(f"'{self.name}' must be less than {below:g}, got {value!r}")
        if above is not None and value <= above:
            raise ValueError(f"'{self.name}' must be greater than {above:g}, got {value!r}")

    @property
    def meaning(self) -> str:
        """The type and the allowed choices of the field, for a message."""
        return _meaning(self.kind, self.limits)

    @property
    def allowed(self) -> str:
        """The type, the allowed choices and the range of the field."""
        bounds = _bounds(self.limits) if self._is_number else ""
        return f"{self.meaning}; {bounds}" if bounds else self.meaning


def in_recipe(value: Any) -> str:
    """Return a value as a recipe would contain it.

    >>> in_recipe(5e-5), in_recipe(True), in_recipe(("a", "b")), in_recipe({"a": 2})
    ('5e-05', 'true', 'a,b', '{a: 2}')
    """
    if isinstance(value, bool) or value in (None, MISSING):
        return {True: "true", False: "false", None: "null", MISSING: "(needed)"}[value]
    if isinstance(value, Mapping):
        pairs = (f"{name}: {in_recipe(one)}" for name, one in value.items())
        return f"{{{', '.join(pairs)}}}" if value else "(none)"
    if isinstance(value, tuple):
        return ",".join(map(str, value)) or "(none)"
    return f"{value:g}" if isinstance(value, float) else str(value)


def keys_of(kind: Any, section: str = "", leave_out: tuple[str, ...] = ()) -> Iterator[Key]:
    """Yield a key for each field of a dataclass, inherited fields last.

    Args:
        section: prefix of the keys.
        leave_out: names of fields to skip.
    """
    hints = typing.get_type_hints(kind)
    descriptions = descriptions_of(kind)

    def inherited(spec: Field[Any]) -> int:
        return sum(spec.name in getattr(base, "__dataclass_fields__", ()) for base in kind.__mro__)

    for spec in sorted(fields(kind), key=inherited):
        if spec.name not in leave_out:
            limits = spec.metadata.get("limits", Limits())
            default = spec.default
            if spec.default_factory is not MISSING:
                default = spec.default_factory()
            about = descriptions.get(spec.name, "")
            yield Key(f"{section}{spec.name}", hints[spec.name], limits, default, about)


def _bounds(limits: Limits) -> str:
    """Return the allowed range of a number as text, such as `from 0 to 1`; "" without limits.

    >>> _bounds(Limits(at_least=0, below=1)), _bounds(Limits(at_least=1, at_most=64))
    ('at least 0, less than 1', 'from 1 to 64')
    """
    if limits.at_least is not None and limits.at_most is not None:
        return f"from {limits.at_least:g} to {limits.at_most:g}"
    bounds = {
        "at least": limits.at_least,
        "more than": limits.above,
        "less than": limits.below,
        "at most": limits.at_most,
    }
    return ", ".join(f"{name} {bound:g}" for name, bound in bounds.items() if bound is not None)


def _meaning(kind: Any, limits: Limits) -> str:
    origin = typing.get_origin(kind)
    if origin is Literal:
        return "one of " + ", ".join(map(_in_yaml, typing.get_args(kind)))
    if origin in (types.UnionType, typing.Union):
        return " or ".join(_meaning(inner, limits) for inner in typing.get_args(kind))
    if kind == DATA_SETS:
        return "a list of data sets"
    if origin is tuple:
        inner = typing.get_args(kind)[0]
        if inner is str:
            return "a list of one or two column names" if limits.at_most == 2 else "a list of names"
        several = {int: "a list of whole numbers", float: "a list of numbers"}
        return several.get(inner) or f"a list, each element {_meaning(inner, Limits())}"
    if kind == WEIGHTS:
        return "a mapping of names to numbers"
    if origin is Mapping:
        return "a mapping of names to numbers and strings"
    names = {
        int: "a whole number", float: "a number", str: "a string", bool: "true or false",
        types.NoneType: "null",
    }  # fmt: skip
    return names[kind]


def _json_schema(kind: Any, limits: Limits) -> dict[str, Any]:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal:
        # YAML 1.1 reads no as false
        return {"enum": [*arguments, *([False] if "no" in arguments else [])]}
    if origin in (types.UnionType, typing.Union):
        return {"anyOf": [_json_schema(inner, limits) for inner in arguments]}
    if kind == DATA_SETS:
        entry = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
        return {"type": "array", "items": {"anyOf": [{"type": "string"}, entry]}, "minItems": 1}
    if origin is tuple:
        most = {} if limits.at_most is None else {"maxItems": int(limits.at_most)}
        items = _json_schema(arguments[0], Limits())
        several = {"type": "array", "items": items, "minItems": 1, **most}
        return {"anyOf": [several, {"type": "string", "description": "separated by commas"}]}
    if kind == WEIGHTS:
        return {"type": "object", "additionalProperties": {"type": "number"}}
    if origin is Mapping:
        return {"type": "object"}
    if kind not in (int, float):
        return {"type": {str: "string", bool: "boolean", types.NoneType: "null"}[kind]}
    bounds = {
        "minimum": limits.at_least,
        "exclusiveMinimum": limits.above,
        "exclusiveMaximum": limits.below,
        "maximum": limits.at_most,
    }
    given = {name: bound for name, bound in bounds.items() if bound is not None}
    return {"type": "integer" if kind is int else "number", **given}


def _in_yaml(value: str | bool) -> str:
    return value if isinstance(value, str) else str(value).lower()


def _says_no(kind: Any) -> bool:
    """Return True if the value `no`, which YAML 1.1 reads as false, is allowed."""
    words = typing.get_args(kind) if typing.get_origin(kind) is Literal else ()
    return "no" in words and False not in words


def _matches(value: Any, kind: Any) -> bool:
    origin = typing.get_origin(kind)
    if origin is Literal:
        # compares the types too, because 1 == True
        return (type(value), value) in [
            (type(allowed), allowed) for allowed in typing.get_args(kind)
        ]
    if origin in (types.UnionType, typing.Union):
        return any(_matches(value, inner) for inner in typing.get_args(kind))
    if kind == DATA_SETS:
        return isinstance(value, list) and all(isinstance(item, str | dict) for item in value)
    if origin is tuple:
        inner = typing.get_args(kind)[0]
        return isinstance(value, list) and all(_matches(item, inner) for item in value)
    if origin is Mapping:
        allowed = int | float if kind == WEIGHTS else int | float | str | None
        return isinstance(value, dict) and all(
            isinstance(name, str) and isinstance(item, allowed) for name, item in value.items()
        )
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, kind)
