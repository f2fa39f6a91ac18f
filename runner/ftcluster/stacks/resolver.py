"""What versions a user wishes for, which stacks have them, and why none has. Pure functions."""

import itertools
import re
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields

from ftcluster.errors import UsageError
from ftcluster.stacks.catalog import CCL, IPEX, NODE_PYTHON, Note, Stack, find_stack, numbers

LATEST = "latest"
AT_MOST = 4  # nearest stacks in an answer
EACH = 2  # of them that give up the same
# the parts that are packages: how they are called, and their packages
PARTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "torch": ("torch", ("torch",)),
    "transformers": ("transformers", ("transformers",)),
    "accelerate": ("accelerate", ("accelerate",)),
    "ipex": ("IPEX", IPEX),
    "ccl": ("oneccl_bind_pt", (CCL,)),
}
_RELEASE = re.compile(r"v?(\d+(?:\.\d+)*)(?:\+cpu)?")


@dataclass(frozen=True)
class Wish:
    """What a set of versions should have; None: no matter.

    A version stands for all that begin with it: 2.0 for 2.0.0 and 2.0.1. `latest` is the highest
    that any stack has.

    Attributes:
        stack: the name of a stack.
        torch: a version.
        transformers: a version.
        accelerate: a version.
        ipex: a version, True for any, False for a set without it.
        ccl: the same of oneccl_bind_pt.
        python: a version of Python; 3.11 and 3.11.7 are the same.

    Raises:
        UsageError: something given as a version is none.
    """

    stack: str | None = None
    torch: str | None = None
    transformers: str | None = None
    accelerate: str | None = None
    ipex: str | bool | None = None
    ccl: str | bool | None = None
    python: str | None = None

    def __post_init__(self) -> None:
        for part, (label, _) in PARTS.items():
            value = getattr(self, part)
            if isinstance(value, str) and value != LATEST and not _RELEASE.fullmatch(value):
                raise UsageError(f"'{value}' is no version of {label}", "as 2.8, 2.8.0 or latest")
        if self.python is not None and not re.fullmatch(r"\d+\.\d+(\.\d+)?", self.python):
            raise UsageError(f"'{self.python}' is no version of Python", "as 3.11")

    def to_dict(self) -> dict[str, str | bool]:
        """What is wished for, without what does not matter."""
        given = ((field.name, getattr(self, field.name)) for field in fields(self))
        return {name: value for name, value in given if value is not None}


@dataclass(frozen=True)
class Near:
    """A stack that fulfils a part of a wish.

    Attributes:
        stack: the stack.
        missed: what it does not fulfil, each as a short text with what it has instead.
    """

    stack: Stack
    missed: tuple[str, ...]


@dataclass(frozen=True)
class Answer:
    """Whether a wish can be had.

    Attributes:
        wish: what was asked, in words.
        exact: the stacks that fulfil it all, the ones that are looked after first.
        nearest: where there is none, those that come nearest, best first.
        reasons: why there is none.
    """

    wish: tuple[str, ...]
    exact: tuple[Stack, ...]
    nearest: tuple[Near, ...] = ()
    reasons: tuple[Note, ...] = ()

    @property
    def possible(self) -> bool:
        """Whether a stack fulfils all of it."""
        return bool(self.exact)


def resolve(wish: Wish, stacks: dict[str, Stack]) -> Answer:
    """Find the stacks that fulfil a wish, or the nearest and why there is none.

    >>> resolve(Wish(torch="2.7", ipex=True, ccl=True), load_stacks()).exact[0].name
    'intel-2.7'

    Raises:
        UsageError: the wish names a stack that is not there.
    """
    if wish.stack is not None:
        find_stack(wish.stack, stacks)
    everything = tuple(stacks.values())
    clauses = _clauses(wish, everything)
    words = tuple(clause.words for clause in clauses)
    exact = _meeting(clauses, everything)
    if exact:
        return Answer(words, tuple(sorted(exact, key=_documented)))
    reasons = itertools.chain.from_iterable(
        _explain(conflict, everything) for conflict in _conflicts(clauses, everything)
    )
    return Answer(words, (), _nearest(clauses, everything), tuple(dict.fromkeys(reasons)))


@dataclass(frozen=True)
class _Clause:
    """One part of a wish.

    Attributes:
        part: the field of Wish.
        value: what it says there; a version without anything around it.
    """

    part: str
    value: str | bool

    @property
    def words(self) -> str:
        """As a person would say it."""
        if self.part == "stack":
            return f"stack {self.value}"
        label = _label(self.part)
        if isinstance(self.value, str):
            return f"{label} {self.value}"
        return label if self.value else f"no {label}"

    @property
    def versions(self) -> bool:
        """Whether it is about a version of a package."""
        return self.part in PARTS and isinstance(self.value, str)

    def met(self, stack: Stack) -> bool:
        """Whether a stack fulfils it."""
        if self.part == "stack":
            return stack.name == self.value
        if self.part == "python":
            return stack.fits_python(str(self.value))
        has = _version(stack, self.part)
        if isinstance(self.value, bool):
            return bool(has) == self.value
        wanted = numbers(self.value)
        return bool(has) and numbers(has)[: len(wanted)] == wanted

    def missed(self, stack: Stack) -> str:
        """What a stack that does not fulfil it has instead."""
        if self.part == "stack":
            return f"another than {self.value}"
        if self.part == "python":
            return f"for Python {_span(stack.python)}"
        has, label = _version(stack, self.part), _label(self.part)
        if not has:
            return f"without {label}"
        return f"{label} {has} instead of {self.value}" if self.value else f"with {label} {has}"

    def distance(self, stack: Stack, stacks: Sequence[Stack]) -> int:
        """How far off a stack is: known releases, minor versions of Python, or stacks between."""
        if self.met(stack):
            return 0
        if self.part == "stack":
            names = [other.name for other in stacks]
            return abs(names.index(stack.name) - names.index(str(self.value)))
        if self.part == "python":
            first, last = (numbers(end)[1] for end in stack.python)
            minor = numbers(str(self.value))[1]
            return max(first - minor, minor - last, 1)
        if not self.versions:
            return 1
        known, has = _known(self.part, stacks), _version(stack, self.part)
        if not has:
            return len(known)  # farther than any version
        wanted, own = numbers(str(self.value)), known.index(has)
        first = bisect_left(known, wanted, key=numbers)  # that is not older than the wished
        if own < first:
            return first - own
        there = first < len(known) and numbers(known[first])[: len(wanted)] == wanted
        return own - first + (not there)

    def same_series(self, stack: Stack) -> bool:
        """Whether a stack has another patch release of what is wished, as 2.5.0 for 2.5.1."""
        has = _version(stack, self.part) if self.versions else ""
        return bool(has) and numbers(has)[:2] == numbers(str(self.value))[:2]


def _clauses(wish: Wish, stacks: Sequence[Stack]) -> tuple[_Clause, ...]:
    """The parts of a wish, with versions as numbers and dots alone."""
    clauses = []
    for part, value in wish.to_dict().items():
        if value == LATEST:
            value = _known(part, stacks)[-1]
        elif part in PARTS and isinstance(value, str):
            value = _RELEASE.fullmatch(value)[1]  # type: ignore[index]  # checked by Wish
        clauses.append(_Clause(part, value))
    return tuple(clauses)


def _label(part: str) -> str:
    return PARTS[part][0] if part in PARTS else "Python"


def _version(stack: Stack, part: str) -> str:
    return stack.version(*PARTS[part][1])


def _known(part: str, stacks: Iterable[Stack]) -> list[str]:
    """All versions of a part that stacks have, in order."""
    return sorted({_version(stack, part) for stack in stacks} - {""}, key=numbers)


def _meeting(clauses: Iterable[_Clause], stacks: Sequence[Stack]) -> list[Stack]:
    clauses = tuple(clauses)
    return [stack for stack in stacks if all(clause.met(stack) for clause in clauses)]


def _documented(stack: Stack) -> bool:
    return stack.state == "documented"


def _nearest(clauses: Sequence[_Clause], stacks: Sequence[Stack]) -> tuple[Near, ...]:
    """Few stacks that give up little.

    A stack that gives up more than another, and that as well, is left out. What remains is sorted
    by how much is given up, whether it is another patch release only, whether ftcluster looks after
    the stack, and how far away its versions are.
    """
    missed = {
        stack.name: frozenset(clause for clause in clauses if not clause.met(stack))
        for stack in stacks
    }

    def order(stack: Stack) -> tuple[int, bool, bool, int]:
        given_up = missed[stack.name]
        same_series = all(clause.same_series(stack) for clause in given_up)
        return len(given_up), not same_series, _documented(stack), far(stack)

    def far(stack: Stack) -> int:
        return sum(clause.distance(stack, stacks) for clause in missed[stack.name])

    chosen: list[Stack] = []
    for given_up in set(missed.values()):
        if any(other < given_up for other in missed.values()):
            continue
        alike = sorted((s for s in stacks if missed[s.name] == given_up), key=order)
        chosen += {s.name: s for s in (*alike[:EACH], min(alike, key=far))}.values()
    chosen.sort(key=lambda stack: (order(stack), stacks.index(stack)))
    return tuple(
        Near(s, tuple(clause.missed(s) for clause in clauses if not clause.met(s)))
        for s in chosen[:AT_MOST]
    )


def _conflicts(clauses: Sequence[_Clause], stacks: Sequence[Stack]) -> list[tuple[_Clause, ...]]:
    """The smallest groups of clauses that no stack fulfils together."""
    found: list[tuple[_Clause, ...]] = []
    for size in range(1, len(clauses) + 1):
        for group in itertools.combinations(clauses, size):
            smaller = any(set(conflict) <= set(group) for conflict in found)
            if not smaller and not _meeting(group, stacks):
                found.append(group)
    return found


def _explain(conflict: tuple[_Clause, ...], stacks: Sequence[Stack]) -> list[Note]:
    """Why no stack fulfils these clauses together, the general facts after what the data say."""
    if len(conflict) == 1:
        text = _unknown(conflict[0], stacks)
    elif len(conflict) == 2:
        text = _exclusive(*conflict, stacks)
    else:
        words = [clause.words for clause in conflict]
        text = f"no set has {listed(words)} together, though all but any one of them go together"
    notes = [Note(text)]
    others, last = conflict[:-1], conflict[-1]  # Python comes last in a wish
    too_old = last.part == "python" and numbers(str(last.value))[:2] < numbers(NODE_PYTHON)
    starts = {stack.python[0] for stack in _meeting(others, stacks)}
    if others and too_old and NODE_PYTHON in starts:
        notes.append(Note(f"ftcluster's own package on the hosts needs Python {NODE_PYTHON}"))
    facts = dict.fromkeys(note for stack in stacks for note in stack.warnings if note.explains)
    return notes + [note for note in facts if _applies(note, conflict, stacks)]


def _applies(note: Note, conflict: tuple[_Clause, ...], stacks: Sequence[Stack]) -> bool:
    """Whether a general fact explains a conflict.

    That something has come to its end explains nothing where an earlier release is wished for.
    """
    by_part = {clause.part: clause for clause in conflict}
    if not set(note.explains) <= set(by_part):
        return False
    clause = by_part[note.explains[0]]
    if not clause.versions:
        return clause.value is True
    warned = [stack for stack in stacks if note in stack.warnings]
    wanted, newest = numbers(str(clause.value)), numbers(_known(clause.part, warned)[-1])
    return wanted >= newest[: len(wanted)]


def _unknown(clause: _Clause, stacks: Sequence[Stack]) -> str:
    """That no stack has what one clause wants, with the nearest below and above."""
    if clause.part == "python":
        ends = {end: s.name for s in reversed(stacks) for end in s.python}
        text, wanted = f"no set is for {clause.words}", numbers(str(clause.value))[:2]
    else:
        ends = {_version(s, clause.part): s.name for s in reversed(stacks)}
        ends.pop("", None)
        text, wanted = f"ftcluster knows no set with {clause.words}", numbers(str(clause.value))
    known = sorted(ends, key=numbers)
    position = bisect_left(known, wanted, key=numbers)
    below, above = known[:position][-1:], known[position:][:1]
    if below and above:
        low, high = below[0], above[0]
        return f"{text}; the nearest are {low} ({ends[low]}) and {high} ({ends[high]})"
    nearest = (below or above)[0]
    return f"{text}; the {'newest' if below else 'oldest'} is {nearest} ({ends[nearest]})"


def _exclusive(one: _Clause, other: _Clause, stacks: Sequence[Stack]) -> str:
    """Why two clauses that can each be had cannot be had together."""
    there, elsewhere = _meeting((one,), stacks), _meeting((other,), stacks)
    subject, many = _subject(one, there)
    if other.part == "python":
        ends = sorted((end for stack in there for end in stack.python), key=numbers)
        return f"{subject} {'are' if many else 'is'} for Python {_span((ends[0], ends[-1]))}"
    label, have = _label(other.part), "have" if many else "has"
    known = _known(other.part, there)
    if not known and one.part == "torch":
        text = f"no {label} was made for {one.words}"
    elif not known:
        text = f"{subject} {have} no {label}"
    else:
        text = f"{subject} {have} {label} {_several(known)}"
    if other.value is False:
        return text
    if other.value is True:
        last = _known(other.part, elsewhere)[-1]
        elsewhere = [stack for stack in elsewhere if _version(stack, other.part) == last]
        return f"{text}; the last is {last}, {_company(one, elsewhere)}"
    return f"{text}; {other.words} is {_company(one, elsewhere)}"


def _subject(clause: _Clause, stacks: Sequence[Stack]) -> tuple[str, bool]:
    """The stacks that fulfil a clause as the subject of a sentence, and whether it is plural."""
    if clause.part == "stack":
        return str(clause.value), False
    words = clause.words if clause.value else f"out {_label(clause.part)}"
    join = "with " if clause.value else "with"
    if len(stacks) == 1:
        return f"the set {join}{words} ({stacks[0].name})", False
    return f"the sets {join}{words}", True


def _company(clause: _Clause, stacks: Sequence[Stack]) -> str:
    """What stacks have of the part that a clause is about: "for torch 2.7.0"."""
    known = _known(clause.part, stacks) if clause.part in PARTS else []
    if not known:
        return f"in {_several([stack.name for stack in stacks])}"
    word = "for" if clause.part == "torch" else "in sets with"
    return f"{word} {_label(clause.part)} {_several(known)}"


def _several(values: Sequence[str]) -> str:
    """A few values, or the first and the last of many."""
    return listed(values) if len(values) <= 3 else f"{values[0]} to {values[-1]}"


def _span(ends: tuple[str, str]) -> str:
    return ends[0] if ends[0] == ends[1] else f"{ends[0]} to {ends[1]}"


def listed(words: Sequence[str]) -> str:
    """Words as a sentence has them: "a, b and c"."""
    return " and ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))
