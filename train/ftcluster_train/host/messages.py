"""What ranks, guardians and the supervisor say to each other, checked. Standard library only."""

import hmac
import json
import math
from collections.abc import Callable, Mapping
from typing import Any

RANK_DIGITS = 8
LINE_LIMIT = 1 << 14  # bytes of a line; those of a guardian have a few hundred
TEXT_LIMIT = 256  # characters
LARGEST = 1 << 62  # of a number: counters of the kernel have 64 bits


def hello_of(secret: str, rank: int) -> bytes:
    """What a guardian sends first."""
    return f"{secret} {rank}\n".encode()


def rank_of(hello: bytes, secret: str) -> int | None:
    """The rank of the guardian that says hello; None while its line is not complete.

    Raises:
        ValueError: it does not have the secret, or says something else than `hello_of`.
    """
    greeting = secret.encode() + b" "
    if len(hello) >= len(greeting) and not hmac.compare_digest(hello[: len(greeting)], greeting):
        raise ValueError
    rank, newline, _ = hello[len(greeting) :].partition(b"\n")
    if len(rank) > RANK_DIGITS or (newline and not rank.isdigit()):
        raise ValueError
    return int(rank) if newline else None


def read_report(line: bytes) -> dict[str, Any]:
    """A line of JSON of a rank or its guardian: the fields that are known, each of its form.

    Raises:
        ValueError: it is no report.
    """
    try:
        report = json.loads(line)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return _fields(report, REPORT)


def _fields(report: Any, forms: Mapping[str, Callable[[Any], bool]]) -> dict[str, Any]:
    if not isinstance(report, dict):
        raise ValueError("no object")
    fields = {name: report[name] for name in forms if name in report}
    wrong = [name for name, value in fields.items() if not forms[name](value)]
    if wrong:
        raise ValueError(f"of another form: {', '.join(wrong)}")
    return fields


def _integer(value: Any) -> bool:
    return type(value) is int and abs(value) <= LARGEST


def _count(value: Any) -> bool:
    return _integer(value) and value >= 0


def _number(value: Any) -> bool:
    return _integer(value) or (type(value) is float and math.isfinite(value))


def _text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= TEXT_LIMIT


def _sleep(value: Any) -> bool:
    """Whether it is what `activity.sleep_of` returns."""
    if value is None:
        return True
    forms = (_count, _count, _text)
    return isinstance(value, list) and len(value) == 3 and _each(value, forms)


def _programs(value: Any) -> bool:
    forms = (_text, _count, _number)
    return isinstance(value, list) and all(
        isinstance(one, list) and len(one) == 3 and _each(one, forms) for one in value
    )


def _each(values: list[Any], forms: tuple[Callable[[Any], bool], ...]) -> bool:
    return all(form(value) for form, value in zip(forms, values, strict=True))


def _condition(value: Any) -> bool:
    """Whether it is what `HostCondition.read` returns."""
    try:
        return len(_fields(value, CONDITION)) == len(CONDITION)
    except ValueError:
        return False


CONDITION: Mapping[str, Callable[[Any], bool]] = {
    "mhz": lambda value: value is None or _number(value),
    "throttled": _integer,
    "stolen": _number,
    "swap": _number,
    "programs": _programs,
}
REPORT: Mapping[str, Callable[[Any], bool]] = {
    "step": _count,
    "doing": _text,
    "pid": lambda value: _count(value) and value > 1,
    "state": _text,
    "sleep": _sleep,
    "cpu": _number,
    "wire": _count,
    "exit": lambda value: _integer(value) and abs(value) < 256,
    "oom": lambda value: isinstance(value, bool),
    "host": _condition,
}
