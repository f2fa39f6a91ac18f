"""Finds stacks that meet requirements, or else the nearest stacks and the reasons."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from ftcluster.errors import UsageError
from ftcluster.stacks.catalog import CCL, IPEX, NODE_PYTHON, Note, Stack, find_stack, numbers

LATEST = "latest"
MAX_NEAREST = 4
MAX_ALIKE = 2  # stacks that miss the same requirements, in addition to the closest stack
PACKAGES = {"torch": ("torch",), "transformers": ("transformers",), "accelerate": ("accelerate",),
            "ipex": IPEX, "ccl": (CCL,)}  # fmt: skip
PARTS = ("stack", *PACKAGES, "python")
LABELS = {"ipex": "IPEX", "ccl": CCL, "python": "Python"}
_RELEASE = re.compile(r"v?(\d+(?:\.\d+)*)(?:\+cpu)?")


@dataclass(frozen=True)
class Requirement:
    """A property that a stack must have.

    Attributes:
        part: element of PARTS.
        value: a stack's name; a version, where 2.13 also matches 2.13.1; `latest` for the highest
            version of any stack; True for any version; False if the stack must not have the part.

    Raises:
        UsageError: the value should be a version but is not.
    """

    part: str
    value: str | bool

    def __post_init__(self) -> None:
        latest = self.value == LATEST and self.part != "python"
        if isinstance(self.value, bool) or self.part == "stack" or latest:
            return
        version = _RELEASE.fullmatch(self.value)
        if not version or (self.part == "python" and "." not in self.value):
            raise UsageError(
                f"'{self.value}' is not a version of {self.label}", "write it as 3.11 or 3.11.7"
            )
        object.__setattr__(self, "value", version[1])

    @property
    def label(self) -> str:
        """The name of the part."""
        return LABELS.get(self.part, self.part)

    def __str__(self) -> str:
        if isinstance(self.value, bool):
            return self.label if self.value else f"no {self.label}"
        return f"{self.label} {self.value}"

    def met(self, stack: Stack) -> bool:
        """Return True if a stack meets the requirement."""
        if self.part == "python":
            return stack.fits_python(str(self.value))
        of_stack = versions(stack, self.part)
        if isinstance(self.value, bool):
            return bool(of_stack) == self.value
        if self.part == "stack":
            return self.value in of_stack
        wanted = numbers(self.value)
        return any(numbers(version)[: len(wanted)] == wanted for version in of_stack)

    def difference(self, stack: Stack) -> str:
        """Describe the difference between a requirement and a stack that does not meet it."""
        text = " to ".join(versions(stack, self.part))
        if not text:
            return f"no {self.label}"
        return f"{self.label} {text}" + (f" instead of {self.value}" if self.value else "")

    def distance(self, stack: Stack) -> float:
        """Return the difference of minor versions; 0 if no versions can be compared."""
        if isinstance(self.value, bool) or self.part == "stack" or self.met(stack):
            return 0
        minors = [_minor(version) for version in versions(stack, self.part)]
        return min((abs(minor - _minor(self.value)) for minor in minors), default=float("inf"))


@dataclass(frozen=True)
class Match:
    """The result of a search for stacks.

    Attributes:
        exact: stacks that meet all requirements, in the order of the file.
        nearest: the nearest stacks if `exact` is empty, the best first, each with its differences.
        reasons: the reasons why no stack meets all requirements, if `exact` is empty.
    """

    exact: tuple[Stack, ...]
    nearest: tuple[tuple[Stack, tuple[str, ...]], ...] = ()
    reasons: tuple[Note, ...] = ()


def resolve(requirements: Sequence[Requirement], stacks: Mapping[str, Stack]) -> Match:
    """Find the stacks that meet all requirements, or else the nearest stacks.

    Raises:
        UsageError: there is no stack with a required name.
    """
    all_stacks = tuple(stacks.values())
    needs = []
    for need in requirements:
        if need.part == "stack":
            find_stack(str(need.value), stacks)
        value = need.value
        if value == LATEST:
            value = max(_all_versions(need.part, all_stacks), key=numbers)
        needs.append(replace(need, value=value))
    exact = _meeting(needs, all_stacks)
    if exact:
        return Match(exact)
    conflicts = _conflicts(needs, all_stacks)
    reasons = (note for group in conflicts for note in _explain(group, all_stacks))
    return Match((), _nearest(needs, all_stacks), tuple(dict.fromkeys(reasons)))


def versions(stack: Stack, part: str) -> tuple[str, ...]:
    """Return a stack's values of a part: name, first and last Python, or a package's version."""
    if part not in PACKAGES:
        return (stack.name,) if part == "stack" else tuple(dict.fromkeys(stack.python))
    return tuple(filter(None, [stack.version(*PACKAGES[part])]))


def _all_versions(part: str, stacks: Iterable[Stack]) -> list[str]:
    return list(dict.fromkeys(version for stack in stacks for version in versions(stack, part)))


def _minor(version: str) -> int:
    major, minor = (*numbers(version), 0)[:2]
    return 100 * major + minor


def _meeting(needs: Sequence[Requirement], stacks: Iterable[Stack]) -> tuple[Stack, ...]:
    return tuple(stack for stack in stacks if all(need.met(stack) for need in needs))


def _nearest(
    needs: Sequence[Requirement], stacks: Iterable[Stack]
) -> tuple[tuple[Stack, tuple[str, ...]], ...]:
    """Return the stacks that miss the fewest requirements, the best first.

    Among these, prefer equal minor versions, then locked stacks, then close versions, then the
    default stack.
    """
    alike: dict[tuple[Requirement, ...], list[Stack]] = {}  # stacks by their missed requirements
    for stack in stacks:
        alike.setdefault(tuple(need for need in needs if not need.met(stack)), []).append(stack)

    def distance(row: tuple[tuple[Requirement, ...], Stack]) -> float:
        return sum(need.distance(row[1]) for need in row[0])

    def order(row: tuple[tuple[Requirement, ...], Stack]) -> tuple[float, ...]:
        missed, stack = row
        off, is_default = distance(row), stack.state == "default"
        return len(missed), off > 0, stack.state == "documented", off, not is_default

    rows = []
    for missed, group in alike.items():
        if not any(set(other) < set(missed) for other in alike):
            best = sorted(((missed, stack) for stack in group), key=order)
            rows += best[:MAX_ALIKE]
            rows += [row for row in [min(best, key=distance)] if row not in rows]
    return tuple(
        (stack, tuple(need.difference(stack) for need in missed))
        for missed, stack in sorted(rows, key=order)[:MAX_NEAREST]
    )


def _conflicts(
    needs: Sequence[Requirement], stacks: Sequence[Stack]
) -> list[tuple[Requirement, ...]]:
    """Return all minimal groups of requirements that no stack meets together."""
    conflicts: list[tuple[Requirement, ...]] = []
    for size in range(1, len(needs) + 1):
        for group in combinations(needs, size):
            minimal = not any(set(smaller) <= set(group) for smaller in conflicts)
            if minimal and not _meeting(group, stacks):
                conflicts.append(group)
    return conflicts


def _explain(conflict: Sequence[Requirement], stacks: Sequence[Stack]) -> list[Note]:
    """Explain why no stack meets these requirements together; add relevant warnings of stacks."""
    *others, last = conflict
    available = _all_versions(last.part, _meeting(others, stacks))
    if last.part == "python":
        available = sorted(available, key=numbers)
        available = [f"{available[0]} to {available[-1]}"]
    only = f"only {last.label} {', '.join(available)}" if available else f"no {last.label}"
    if others:
        names = [stack.name for stack in _meeting([last], stacks)]
        having = ", ".join(names) if len(names) < 4 else f"{names[0]} to {names[-1]}"
        text = (
            f"with {' and '.join(map(str, others))} there is {only}; stacks with {last}: {having}"
        )
    else:
        text = f"no stack has {last}; there is {only}"
    notes = [Note(text)]
    if last.part == "python" and numbers(str(last.value))[:2] < numbers(NODE_PYTHON):
        notes.append(Note(f"ftcluster's package on the hosts needs Python {NODE_PYTHON}"))
    general = dict.fromkeys(note for stack in stacks for note in stack.warnings if note.explains)
    values = {need.part: need.value for need in conflict}
    return notes + [note for note in general if _explains(note, values, stacks)]


def _explains(note: Note, values: Mapping[str, str | bool], stacks: Sequence[Stack]) -> bool:
    """Return True if a warning explains a conflict; see `Note.explains`."""
    if not set(note.explains) <= set(values):
        return False
    first = note.explains[0]
    value, warned = values[first], [stack for stack in stacks if note in stack.warnings]
    newest = max(map(numbers, _all_versions(first, warned)))
    return value if isinstance(value, bool) else numbers(value) >= newest[: len(numbers(value))]
