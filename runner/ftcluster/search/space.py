"""The search space of a sweep: values and ranges of fields, and their combinations."""

import itertools
import json
import math
import random
import re
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from ftcluster.errors import UsageError
from ftcluster.recipe.names import OTHER_NAMES, SECTION
from ftcluster.recipe.schema import Key
from ftcluster_common.data.data_sets import DataSet
from ftcluster_common.recipe import GENERATED

MOST = 1000  # maximum number of runs of a sweep
WIDE = 100  # minimum ratio of a range's ends for sampling on a logarithmic scale
DIGITS = 3  # significant digits of a sampled number
DRAWS = 50  # maximum number of random draws per requested combination
NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
RANGE = re.compile(rf"({NUMBER})\.\.({NUMBER})")
BRACKETS = {"[": "]", "{": "}", '"': '"', "'": "'"}

Settings = Mapping[str, str]  # values as on a command line, by field


@dataclass(frozen=True)
class Values:
    """A field, and the list of values to try."""

    name: str
    values: tuple[str, ...]

    def draw(self, source: random.Random) -> str:
        """Return a random value of the field."""
        return source.choice(self.values)


@dataclass(frozen=True)
class Range:
    """A field, and a range of values to sample from, including both ends.

    Attributes:
        whole: True if the values are whole numbers.
        log: True if values are sampled uniformly on a logarithmic scale.
    """

    name: str
    low: float
    high: float
    whole: bool
    log: bool

    def draw(self, source: random.Random) -> str:
        """Return a random value of the range, rounded to DIGITS significant digits."""
        if self.log:
            value = math.exp(source.uniform(math.log(self.low), math.log(self.high)))
        elif self.whole:
            return str(source.randint(int(self.low), int(self.high)))
        else:
            value = source.uniform(self.low, self.high)
        return self.text(value)

    def text(self, value: float) -> str:
        """Format a value of the range as in a recipe, with DIGITS significant digits."""
        value = min(max(float(f"{value:.{DIGITS}g}"), self.low), self.high)
        return str(round(value)) if self.whole else f"{value:g}"


Axis = Values | Range


def axes_of(words: Sequence[str], keys: Mapping[str, Key]) -> tuple[list[str], list[Axis]]:
    """Split the arguments of a sweep into arguments with one value and fields with several values.

    For a field whose values are lists, commas separate the elements of one list. To try several
    lists, each list is written in brackets.

    Args:
        words: arguments of the command line.
        keys: the fields of a recipe, by name.

    Raises:
        UsageError: a field is named twice, or a range is not valid.

    >>> axes_of(["mrpc", "seed=1,2", "batch_size=8"], {})
    (['mrpc', 'batch_size=8'], [Values(name='seed', values=('1', '2'))])
    """
    fixed: list[str] = []
    axes: list[Axis] = []
    for word in words:
        name, equals, raw = word.partition("=")
        full_name = OTHER_NAMES.get(name.removeprefix(SECTION), name)
        key = keys.get(full_name) or keys.get(f"{SECTION}{full_name}")
        parts = _parts(raw)
        if equals and (match := RANGE.fullmatch(raw.strip())):
            axes.append(_range(name, match, key))
        elif raw.startswith(GENERATED) or (_takes_list(key) and raw.strip()[:1] != "["):
            fixed.append(word)  # the commas separate elements
        elif equals and len(parts) > 1:
            axes.append(Values(name, tuple(dict.fromkeys(parts))))
        else:
            fixed.append(word)
    names = [word.partition("=")[0] for word in fixed if "=" in word]
    names += [axis.name for axis in axes]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise UsageError(f"{', '.join(twice)}: named twice", "name all values at once: key=a,b,c")
    return fixed, axes


def combinations(axes: Sequence[Axis]) -> list[Settings]:
    """Return all combinations of values. The first field changes slowest.

    Raises:
        UsageError: there are no combinations or too many, or a field has a range.
    """
    if ranges := [axis.name for axis in axes if isinstance(axis, Range)]:
        raise UsageError(
            f"a range has infinitely many values: {', '.join(ranges)}",
            "list the values (key=a,b,c), or try a selection of them: --random N or --tpe N",
        )
    lists = [axis.values for axis in axes if isinstance(axis, Values)]
    if (count := math.prod(map(len, lists))) > MOST:
        raise UsageError(
            f"the sweep has {count:,} runs, but at most {MOST:,} are allowed",
            "try a selection: --random N",
        )
    names = [axis.name for axis in axes]
    return [dict(zip(names, values, strict=True)) for values in itertools.product(*lists)]


def drawn(axes: Sequence[Axis], count: int, seed: int) -> list[Settings]:
    """Return `count` distinct random combinations, or fewer if there are not enough.

    A larger count only appends combinations, so that a sweep can be extended.

    Raises:
        UsageError: `count` exceeds MOST.
    """
    if count > MOST:
        raise UsageError(f"--random {count:,}: at most {MOST:,} runs are allowed")
    distinct: dict[str, Settings] = {}
    for number in range(DRAWS * count):
        values = {
            axis.name: axis.draw(random.Random(f"{seed}/{number}/{axis.name}")) for axis in axes
        }
        distinct.setdefault(json.dumps(values), values)
        if len(distinct) == count:
            break
    return list(distinct.values())


def _range(name: str, match: re.Match[str], key: Key | None) -> Range:
    low, high = (Decimal(number) for number in match.groups())
    if not (math.isfinite(float(high)) and low < high):
        raise UsageError(f"{name}={match[0]} is not a range", "write it as lowest..highest")
    kinds = {key.kind, *typing.get_args(key.kind)} if key else set()
    whole = int in kinds and float not in kinds
    if whole and (low % 1 or high % 1):
        raise UsageError(f"{name}={match[0]}: {name} must be a whole number")
    log = low > 0 and (name.endswith("learning_rate") or high / low >= WIDE)
    return Range(name, float(low), float(high), whole, log)


def _takes_list(key: Key | None) -> bool:
    """Return True if values of the field may be lists whose elements are separated by commas."""
    if key is None:
        return False
    union = typing.get_origin(key.kind) in (types.UnionType, typing.Union)
    kinds = typing.get_args(key.kind) if union else (key.kind,)
    lists = [kind for kind in kinds if typing.get_origin(kind) is tuple]
    return any(typing.get_args(kind)[0] is not DataSet for kind in lists)


def _parts(text: str) -> list[str]:
    """Split a string at its commas, except at commas inside brackets or quotes.

    >>> _parts("[a,b], [c]"), _parts("1e-5,2e-5,")
    (['[a,b]', '[c]'], ['1e-5', '2e-5'])
    """
    parts, open_ = [""], ""
    for letter in text:
        if open_ and letter == open_[-1]:
            open_ = open_[:-1]
        elif letter in BRACKETS and open_[-1:] not in ('"', "'"):
            open_ += BRACKETS[letter]
        elif letter == "," and not open_:
            parts.append("")
            continue
        parts[-1] += letter
    return [part.strip() for part in parts if part.strip()]
