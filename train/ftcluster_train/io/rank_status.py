"""Reports of a rank to its guardian and the supervisor, and requests for stacks of hung ranks.

Standard library only.
"""

import contextlib
import faulthandler
import hmac
import json
import math
import os
import re
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

RANK_DIGITS = 8
LINE_LIMIT = 1 << 14  # maximum bytes of a line; a guardian's lines have a few hundred bytes
TEXT_LIMIT = 256  # maximum characters of a string in a report
LARGEST = 1 << 62  # largest number in a report; the kernel's counters have 64 bits
PROGRESS_VARIABLE = "FTCLUSTER_PROGRESS_FD"  # set by the guardian
SCRIPT = "script"  # the activity of a rank that runs a user's script
STACK_SIGNAL = signal.SIGRTMIN + 5  # users' scripts may use SIGUSR1 and SIGUSR2
STDERR = 2


def hello_of(secret: str, rank: int) -> bytes:
    """Return the first line that a guardian sends."""
    return f"{secret} {rank}\n".encode()


def rank_of(hello: bytes, secret: str) -> int | None:
    """Return the rank in a guardian's first line; None while the line is incomplete.

    Raises:
        ValueError: the line does not contain the secret, or is not a line of `hello_of`.
    """
    greeting = secret.encode() + b" "
    if len(hello) >= len(greeting) and not hmac.compare_digest(hello[: len(greeting)], greeting):
        raise ValueError
    rank, newline, _ = hello[len(greeting) :].partition(b"\n")
    if len(rank) > RANK_DIGITS or (newline and not rank.isdigit()):
        raise ValueError
    return int(rank) if newline else None


def read_report(line: bytes) -> dict[str, Any]:
    """Return the known fields of a report: a line of JSON from a rank or its guardian.

    Raises:
        ValueError: the line is not a report, or a field has an unexpected type or size.
    """
    try:
        report = json.loads(line)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return _fields(report, REPORT)


def _fields(report: Any, forms: Mapping[str, Callable[[Any], bool]]) -> dict[str, Any]:
    if not isinstance(report, dict):
        raise ValueError("not an object")
    fields = {name: report[name] for name in forms if name in report}
    wrong = [name for name, value in fields.items() if not forms[name](value)]
    if wrong:
        raise ValueError(f"unexpected type or size: {', '.join(wrong)}")
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
    """Return True if the value has the form of a result of `activity.sleep_of`."""
    if value is None:
        return True
    forms = (_count, _count, _text)
    return isinstance(value, list) and len(value) == 3 and _each(value, forms)


def _programs(value: Any) -> bool:
    forms = (_text, _count, _number)
    return isinstance(value, list) and all(
        isinstance(row, list) and len(row) == 3 and _each(row, forms) for row in value
    )


def _each(values: list[Any], forms: tuple[Callable[[Any], bool], ...]) -> bool:
    return all(form(value) for form, value in zip(forms, values, strict=True))


def _condition(value: Any) -> bool:
    """Return True if the value has the form of a result of `HostCondition.read`."""
    try:
        return len(_fields(value, CONDITION)) == len(CONDITION)
    except ValueError:
        return False


def _stop_signal(value: Any) -> bool:
    """Return True if the value has the form of a result of `Received.to_dict`."""
    try:
        return len(_fields(value, STOP_SIGNAL)) == len(STOP_SIGNAL)
    except ValueError:
        return False


STOP_SIGNAL: Mapping[str, Callable[[Any], bool]] = {
    "number": lambda value: _count(value) and 0 < value < signal.NSIG,
    "pid": _integer,
    "user": _text,
    "program": _text,
    "stopping": lambda value: value is None or isinstance(value, bool),
}
CONDITION: Mapping[str, Callable[[Any], bool]] = {
    "mhz": lambda value: value is None or _number(value),
    "throttled": _integer,
    "stolen": _number,
    "swap": _number,
    "free": _count,
    "programs": _programs,
}
REPORT: Mapping[str, Callable[[Any], bool]] = {
    "step": _count,
    "doing": _text,
    "pid": lambda value: _count(value) and value > 1,
    "state": _text,
    "sleep": _sleep,
    "cpu": _number,
    "memory": _count,
    "wire": _count,
    "exit": lambda value: _integer(value) and abs(value) < 256,
    "oom": lambda value: isinstance(value, bool),
    "host": _condition,
    "signal": _stop_signal,
}


def report(step: int, doing: str, pid: int | None = None) -> None:
    """Report the step and the activity to the guardian.

    The function never waits. Without a guardian, it does nothing.

    Args:
        doing: activity: loading, forward, all-reduce, evaluating, saving or SCRIPT.
        pid: process id of the activity; None means this process.
    """
    _write({"step": step, "doing": doing, **({"pid": pid} if pid else {})})


def report_signal(fields: Mapping[str, Any]) -> None:
    """Report a signal that asks this process to stop; see `signals.Received.to_dict`."""
    _write({"signal": fields})


def _write(message: Mapping[str, Any]) -> None:
    if descriptor := os.environ.get(PROGRESS_VARIABLE):
        with contextlib.suppress(OSError):  # the guardian does not read, or is gone
            os.write(int(descriptor), json.dumps(message).encode() + b"\n")


def keep_from_children() -> None:
    """Prevent programs that this process executes from sending reports."""
    descriptor = os.environ.pop(PROGRESS_VARIABLE, None)
    if descriptor:
        os.set_inheritable(int(descriptor), False)


def write_stacks_on_signal() -> None:
    """Make this process write the stacks of its threads when it gets STACK_SIGNAL."""
    faulthandler.register(STACK_SIGNAL, STDERR)


def ask_for_stacks(pid: int) -> bool:
    """Request a process's stacks, unless the signal would end it; return True if requested."""
    with contextlib.suppress(OSError):  # the process has ended
        status = Path(f"/proc/{pid}/status").read_text()
        caught = re.search(r"^SigCgt:\s*(\w+)", status, re.MULTILINE)
        if caught and int(caught[1], 16) >> (STACK_SIGNAL - 1) & 1:
            os.kill(pid, STACK_SIGNAL)
            return True
    return False
