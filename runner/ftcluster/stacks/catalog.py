"""The stacks, sets of versions that match: the file that the role torch_stack reads too."""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.advisories import advisories_of
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.shallow_yaml import parse_yaml
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.stack_choice import unverified
from packaging.utils import canonicalize_name

from ftcluster.errors import StacksError, UsageError
from ftcluster.paths import collection

NODE_PYTHON = "3.10"  # the oldest that ftcluster_train, the package on the hosts, runs on
IPEX = ("intel_extension_for_pytorch", "torch_ipex")  # the second is its name before 1.10
CCL = "oneccl_bind_pt"
# what reading a damaged file raises
DAMAGED = (OSError, ValueError, yaml.YAMLError, LookupError, TypeError, AttributeError)


@dataclass(frozen=True)
class Note:
    """A warning, or a reason.

    Attributes:
        text: one sentence without a full stop.
        source: where it is from; empty if it follows from the stacks themselves.
        explains: the parts (torch, ipex, ccl, transformers, accelerate) that no stack has together
            for this reason; it is about releases of the first as new as the stacks' or newer.
    """

    text: str
    source: str = ""
    explains: tuple[str, ...] = ()


@dataclass(frozen=True)
class Advisory:
    """A known vulnerability of a version that a stack has.

    Attributes:
        allows: what somebody can do with it.
        source: where its advisory is.
        looked_at: the day on which the list was made, such as 2026-11-26.
    """

    id: str
    package: str
    version: str
    allows: str
    source: str
    looked_at: str


@dataclass(frozen=True)
class Stack:
    """A set of versions that match.

    Attributes:
        name: what `setup --stack` takes.
        state: default: what setup installs; supported: locked and tested; documented: known to
            match, neither locked nor tested.
        python: the first and the last minor version that all packages have wheels for.
        packages: exact versions by package name.
        backends: the collective backends that it supports, the preferred first.
        cpu_flags: the instruction-set flags that a CPU must have.
        unverified: packages that its lock has no hash of.
        tried: where ftcluster itself trained with it; empty: nowhere.
        warnings: what to know before installing it.
        indexes: the index of each package that is not on the usual one, or better elsewhere.
        advisories: the known vulnerabilities of its versions of torch and transformers.
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
    advisories: tuple[Advisory, ...] = ()

    def version(self, *packages: str) -> str:
        """The version of the first of these packages that it has, in any spelling; "" for none.

        >>> load_stacks()["native"].version("torch")
        '2.13.0'
        """
        versions = {canonicalize_name(name): version for name, version in self.packages.items()}
        return next((versions[n] for n in map(canonicalize_name, packages) if n in versions), "")

    @property
    def has_ipex(self) -> bool:
        """Whether it has Intel's extension for PyTorch."""
        return bool(self.version(*IPEX))

    @property
    def has_ccl(self) -> bool:
        """Whether it has oneCCL's binding for torch.distributed."""
        return bool(self.version(CCL))

    @property
    def missing_hashes(self) -> str:
        """The packages without a hash, as a text; "" if all have one."""
        return str(unverified(vars(self)))

    def fits_python(self, version: str) -> bool:
        """Return whether all packages have wheels for a Python, given as 3.11 or 3.11.7."""
        first, last = (numbers(end) for end in self.python)
        return first <= numbers(version)[:2] <= last

    @property
    def host_python(self) -> tuple[str, str] | None:
        """The first and the last Python that `setup` installs it with; None if there is none."""
        first, last = self.python
        if numbers(last) < numbers(NODE_PYTHON):
            return None
        return max(first, NODE_PYTHON, key=numbers), last


def numbers(version: str) -> tuple[int, ...]:
    """A version for comparisons: (2, 13, 0) for 2.13.0."""
    return tuple(int(part) for part in version.split("."))


def load_stacks(path: Path | None = None) -> dict[str, Stack]:
    """All stacks by name, in the file's order: the default first, then the newest.

    Raises:
        StacksError: the file cannot be read, or is not what tests/unit/stacks makes sure of.
    """
    files = collection() / "roles" / "torch_stack" / "files"
    advisories = load_advisories(files / "advisories.yml")
    path = path or files / "stacks.yml"
    try:
        document = parse_yaml(path.read_text(encoding="utf-8"))
        notes = {
            key: Note(note["text"], note["source"], tuple(note.get("explains", ())))
            for key, note in document["warnings"].items()
        }
        return {
            name: _stack(name, data, notes, document["indexes"], advisories)
            for name, data in document["stacks"].items()
        }
    except DAMAGED as error:
        raise _damaged(path, error) from error


def load_advisories(path: Path) -> dict[str, Any]:
    """The known vulnerabilities, as the file has them.

    Raises:
        StacksError: it cannot be read or is damaged.
    """
    try:
        document: dict[str, Any] = parse_yaml(path.read_text(encoding="utf-8"))
        advisories_of({}, document["advisories"])
        str(document["looked_at"])
    except DAMAGED as error:
        raise _damaged(path, error) from error
    return document


def _damaged(path: Path, error: Exception) -> StacksError:
    problem = f"{path} cannot be read or is damaged: {type(error).__name__}: {error}"
    return StacksError(problem, "install ftcluster again")


def _stack(
    name: str,
    data: dict[str, Any],
    notes: dict[str, Note],
    indexes: dict[str, str],
    advisories: dict[str, Any],
) -> Stack:
    lists = {key: tuple(data.get(key, ())) for key in ("backends", "cpu_flags", "python",
                                                       "unverified", "yanked")}  # fmt: skip
    return Stack(
        name=name,
        summary=data["summary"],
        state=data["state"],
        packages=data["packages"],
        tried=data.get("tried", ""),
        warnings=tuple(notes[key] for key in data.get("warnings", ())),
        indexes={p: url for p, url in indexes.items() if p in data["packages"]},
        advisories=tuple(
            Advisory(**advisory, looked_at=advisories["looked_at"])
            for advisory in advisories_of(data["packages"], advisories["advisories"])
        ),
        **lists,
    )


def find_stack(name: str, stacks: Mapping[str, Stack]) -> Stack:
    """The stack of this name.

    Raises:
        UsageError: there is none; suggests the nearest and lists all.
    """
    if name in stacks:
        return stacks[name]
    nearest = difflib.get_close_matches(name, stacks, n=1)
    guess = f"did you mean {nearest[0]}? " if nearest else ""
    raise UsageError(f"unknown stack '{name}'", f"{guess}known stacks: {', '.join(stacks)}")


def install_hint(having: Sequence[Stack]) -> str:
    """Say how to install one of these stacks, preferably one with a lock."""
    locked = [stack.name for stack in having if stack.state != "documented"]
    if locked:
        return f"stacks with it: {', '.join(locked)}; ftcluster setup --stack {locked[0]}"
    return f"stacks with it: {', '.join(stack.name for stack in having)}"
