"""The stacks: sets of versions that match, from the file that the role torch_stack reads."""

import difflib
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from ftcluster.errors import StacksError, UsageError
from ftcluster.paths import collection

NODE_PYTHON = "3.10"  # the oldest that ftcluster_train, the package on the hosts, runs on
IPEX = ("intel_extension_for_pytorch", "torch_ipex")  # the second is its name before 1.10
CCL = "oneccl_bind_pt"
REPAIR = "install ftcluster again"
_VERSION = re.compile(r"\d+(\.\d+)+")


@dataclass(frozen=True)
class Note:
    """Something worth knowing.

    Attributes:
        text: one sentence without a full stop.
        source: where it is from; empty where it follows from the stacks themselves.
        explains: the parts of a wish (torch, ipex, ccl, transformers, accelerate) whose refusal it
            explains, all of them at once; the first is the one that is wished too new.
    """

    text: str
    source: str = ""
    explains: tuple[str, ...] = ()


@dataclass(frozen=True)
class Stack:
    """A set of versions that match.

    Attributes:
        name: what `setup --stack` takes.
        summary: what it is, in one line.
        state: default: what setup installs; supported: locked and looked after; documented: known
            to match, neither locked nor tried.
        python: the first and the last minor version that all its parts have wheels for.
        packages: exact versions by package name.
        backends: the collective backends it can have, the preferred first.
        cpu_flags: the instruction-set flags that a CPU must have.
        yanked: packages whose makers took this release back.
        unverified: packages of which its lock has no hash.
        tried: where ftcluster itself trained with it; empty: nowhere.
        warnings: what to know before it is chosen.
        indexes: where packages come from that are not, or not best, had from the usual index.
    """

    name: str
    summary: str
    state: Literal["default", "supported", "documented"]
    python: tuple[str, str]
    packages: dict[str, str]
    backends: tuple[str, ...]
    cpu_flags: tuple[str, ...]
    yanked: tuple[str, ...]
    unverified: tuple[str, ...]
    tried: str
    warnings: tuple[Note, ...]
    indexes: dict[str, str]

    def version(self, *packages: str) -> str:
        """The version of a package, or of the first of several that is there; "" for none.

        >>> load_stacks()["native"].version("torch")
        '2.13.0'
        """
        own = {_normalised(name): version for name, version in self.packages.items()}
        return next((own[name] for name in map(_normalised, packages) if name in own), "")

    @property
    def has_ipex(self) -> bool:
        """Whether Intel's extension for PyTorch is in it."""
        return bool(self.version(*IPEX))

    @property
    def has_ccl(self) -> bool:
        """Whether oneCCL's binding for torch.distributed is in it."""
        return bool(self.version(CCL))

    @property
    def bare(self) -> str:
        """What of it no lock has a hash of, in words, or ""."""
        if self.state == "documented":
            return "no lock with the hashes of its packages"
        bare = ", ".join(f"{package} {self.packages[package]}" for package in self.unverified)
        return f"no hash of {bare}" if bare else ""

    def fits_python(self, version: str) -> bool:
        """Whether all its parts have wheels for a Python, given as 3.11 or 3.11.7."""
        first, last = (numbers(end) for end in self.python)
        return first <= numbers(version)[:2] <= last

    @property
    def host_python(self) -> tuple[str, str] | None:
        """The Pythons that `setup` can install it with, or None where there is none."""
        first, last = self.python
        if numbers(last) < numbers(NODE_PYTHON):
            return None
        return max(first, NODE_PYTHON, key=numbers), last


def numbers(version: str) -> tuple[int, ...]:
    """2.13.0 as (2, 13, 0), which compares as versions do."""
    return tuple(int(part) for part in version.split("."))


def load_stacks(path: Path | None = None) -> dict[str, Stack]:
    """All stacks by name, in the file's order: the default first, then the newest.

    Args:
        path: another file than that of the role torch_stack.

    Raises:
        StacksError: the file cannot be read or is damaged; names everything that is wrong.
    """
    path = path or collection() / "roles" / "torch_stack" / "files" / "stacks.yml"
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise StacksError(f"{path}: cannot be read: {error}", REPAIR) from error
    return parse_stacks(text, str(path))


def find_stack(name: str, stacks: dict[str, Stack]) -> Stack:
    """The stack of this name.

    Raises:
        UsageError: there is none; suggests the nearest and lists all.
    """
    if name in stacks:
        return stacks[name]
    nearest = difflib.get_close_matches(name, stacks, n=1)
    guess = f"did you mean {nearest[0]}? " if nearest else ""
    raise UsageError(f"unknown stack '{name}'", f"{guess}known stacks: {', '.join(stacks)}")


def parse_stacks(text: str, source: str) -> dict[str, Stack]:
    """The pure part of `load_stacks`: text in, stacks out.

    Args:
        text: the YAML.
        source: the file's name, for messages.

    Raises:
        StacksError: as in `load_stacks`.
    """
    try:
        document = yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise StacksError(f"{source}:{line}: not valid YAML: {error.problem}", REPAIR) from error
    except yaml.YAMLError as error:
        raise StacksError(f"{source}: not valid YAML: {error}", REPAIR) from error
    sections = ("indexes", "warnings", "stacks")
    if not isinstance(document, dict) or any(not _mapping(document.get(s)) for s in sections):
        raise StacksError(f"{source}: has not the sections {', '.join(sections)}", REPAIR)
    problems = [
        f"warning '{key}': has not a text, a source and, if anything, a list in explains"
        for key, note in document["warnings"].items()
        if not (_mapping(note) and _text(note.get("text")) and _text(note.get("source")))
        or not _texts(note.get("explains", []))
    ]
    for name, data in document["stacks"].items():
        problems += [f"stack '{name}': {problem}" for problem in _problems(data, document)]
    if not problems:
        defaults = [n for n, data in document["stacks"].items() if data["state"] == "default"]
        if len(defaults) != 1:
            problems = [f"one stack is the default, not {len(defaults)}: {', '.join(defaults)}"]
    if problems:
        raise StacksError(f"{source} is damaged\n  " + "\n  ".join(problems), REPAIR)
    notes = {
        key: Note(note["text"], note["source"], tuple(note.get("explains", ())))
        for key, note in document["warnings"].items()
    }
    return {
        name: Stack(
            name=name,
            summary=data["summary"],
            state=data["state"],
            python=tuple(data["python"]),
            packages=data["packages"],
            backends=tuple(data["backends"]),
            cpu_flags=tuple(data["cpu_flags"]),
            yanked=tuple(data.get("yanked", ())),
            unverified=tuple(data.get("unverified", ())),
            tried=data.get("tried", ""),
            warnings=tuple(notes[key] for key in data.get("warnings", ())),
            indexes={p: i for p, i in document["indexes"].items() if p in data["packages"]},
        )
        for name, data in document["stacks"].items()
    }


def _normalised(package: str) -> str:
    return re.sub(r"[-_.]+", "-", package).lower()


def _mapping(value: object) -> bool:
    return isinstance(value, dict) and bool(value)


def _text(value: object) -> bool:
    return isinstance(value, str) and bool(value)


def _texts(value: object) -> bool:
    return isinstance(value, list) and all(map(_text, value))


def _version(value: object) -> bool:
    return isinstance(value, str) and bool(_VERSION.fullmatch(value))


def _range(value: object) -> bool:
    minors = isinstance(value, list) and len(value) == 2 and all(map(_version, value))
    return minors and numbers(value[0]) <= numbers(value[1])  # type: ignore[index]


# a key's test, and what it has to be; YAML reads 2.10 without quotes as the number 2.1
_KEYS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "summary": (_text, "a text"),
    "state": (
        lambda value: value in ("default", "supported", "documented"),
        "default, supported or documented",
    ),
    "python": (_range, "two minor versions in quotes, the first and the last"),
    "packages": (
        lambda value: _mapping(value) and "torch" in value and all(map(_version, value.values())),
        "a version as text for each package, torch among them",
    ),
    "backends": (lambda value: _texts(value) and bool(value), "a list of at least one name"),
    "cpu_flags": (_texts, "a list of names"),
    "yanked": (_texts, "a list of packages"),
    "unverified": (_texts, "a list of packages"),
    "tried": (_text, "a text"),
    "warnings": (_texts, "a list of keys of the section warnings"),
}
_OPTIONAL = {"yanked", "unverified", "tried", "warnings"}


def _problems(data: Any, document: dict[str, Any]) -> list[str]:
    """What is wrong with one stack of the file."""
    if not isinstance(data, dict):
        return ["is not a mapping of keys to values"]
    found = [f"'{key}' is missing" for key in _KEYS if key not in data and key not in _OPTIONAL]
    for key, value in data.items():
        if key not in _KEYS:
            found.append(f"unknown key '{key}'")
        elif not _KEYS[key][0](value):
            found.append(f"'{key}' is {_KEYS[key][1]}, not {value!r}")
    if found:
        return found
    loose = [f"'{w}' is not in the section warnings" for w in data.get("warnings", ())
             if w not in document["warnings"]]  # fmt: skip
    return loose + [
        f"'{package}' is {key}, but not one of its packages"
        for key in ("yanked", "unverified")
        for package in data.get(key, ())
        if package not in data["packages"]
    ]
