"""Damaged inputs, and how a reader handled them."""

import contextlib
import copy
import io
import json
import random
import shutil
import signal
import tempfile
import traceback
from pathlib import Path
from types import FrameType
from typing import Any

from hypothesis import strategies as st

from tests.fuzz.parsers import NASTY, Parser

PIECES = (
    b"[", b"{", b'"', b",", b":", b"\n", b"\\", b"-", b"\x00", b"\xff", b"null", b"true", b"1e999",
    b"-1", b"NaN", b"99999999999999999999", b"[]", b"{}", b"&a ", b"*a",
    b"!!python/object:os.system ",
)  # fmt: skip
WAIT_SECONDS = 120.0  # limit of a wait on a busy machine
# values that a host may send instead of the expected value
HOSTILE: tuple[Any, ...] = (
    "..", "../x", "/etc/passwd", "a/b", "", ".", "-rf", "a\nb", "a\0b", "\ud800", "x" * 5000,
    "~root", "a\u2028- b\x85c\r\x0b\x1e#", "\x1b]52;c;YQ==\x07\x9b2J",
    "{{ 1 }}", "\u202etxt", "\x1b[2J", "$(id)", "a b", "1", "0-9999", 0, -1, 1, 1.5, True,
    None, [], {}, 1 << 53, 1 << 64, 10**400, 1e308, float("nan"), float("inf"), [[]], [None],
    {"a": 1}, {"": []}, {"ansible_facts": {"run_hub_token": "x"}},
)  # fmt: skip
CHANGES = st.lists(
    st.tuples(
        st.floats(0, 1),
        st.integers(0, 40),
        st.one_of(st.sampled_from(PIECES), st.binary(max_size=8)),
    ),
    min_size=1,
    max_size=6,
)


class Hang(BaseException):
    """A reader took too long; not an Exception, because the reader could catch that."""


def damaged(seed: bytes, changes: list[tuple[float, int, bytes]]) -> bytes:
    """Return a seed with replaced parts: their relative positions, lengths and new bytes."""
    for share, length, piece in changes:
        at = int(share * len(seed))
        seed = seed[:at] + piece + seed[at + length :]
    return seed


def answered(seed: bytes, chance: random.Random) -> bytes:
    """Return JSON, or a line of JSON, with one or two parts removed, swapped or hostile."""
    lines = seed.split(b"\n")
    at = chance.randrange(len(lines))
    try:
        value = [json.loads(lines[at])]
    except (ValueError, RecursionError):
        return seed
    for _ in range(chance.randrange(1, 3)):
        parts = _parts(value)
        place, key = chance.choice(parts)
        other, its = chance.choice(parts)
        what = chance.randrange(6)
        if not what and place is not value:
            del place[key]
        elif what == 1:
            place[key] = copy.deepcopy(other[its])
        elif what == 2:
            place[key] = [place[key], copy.deepcopy(place[key])]
        else:
            place[key] = copy.deepcopy(chance.choice(HOSTILE))
    lines[at] = json.dumps(value[0]).encode()
    return b"\n".join(lines)


def _parts(value: Any) -> list[tuple[Any, Any]]:
    """Yield the container and the key of each part of a document."""
    keys = list(value) if isinstance(value, dict) else range(len(value))
    below = [value[key] for key in keys if isinstance(value[key], dict | list)]
    return [(value, key) for key in keys] + [one for part in below for one in _parts(part)]


def inputs_of(parser: Parser) -> st.SearchStrategy[bytes]:
    """Yield seeds, and damaged seeds."""
    seeds = st.sampled_from((*parser.seeds, *NASTY))
    chances = st.builds(random.Random, st.integers(0, 1 << 32))
    return st.one_of(
        st.builds(damaged, seeds, CHANGES),
        st.builds(answered, st.sampled_from(parser.seeds), chances),
        st.binary(max_size=200),
    )


def problem(parser: Parser, data: bytes, seconds: float) -> str:
    """Return the reader's misbehaviour: an unexpected exception, or too much CPU time."""

    def hang(_number: int, _frame: FrameType | None) -> None:
        raise Hang

    folder = Path(tempfile.mkdtemp(prefix="ftcluster-fuzz-"))
    before = {number: signal.signal(number, hang) for number in (signal.SIGPROF, signal.SIGALRM)}
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.setitimer(signal.ITIMER_REAL, WAIT_SECONDS)
    try:
        with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
            parser.read(data, folder)
    except parser.raises:
        return ""
    except Hang:
        return f"takes longer than {seconds:g} s of CPU time, or waits"
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        return (
            f"{type(error).__name__} at {Path(last.filename).name}:{last.name}: {str(error)[:100]}"
        )
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)
        shutil.rmtree(folder, ignore_errors=True)
    return ""
