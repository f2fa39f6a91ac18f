"""Reads the stacks (sets of matching package versions) from the role torch_stack."""

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

NODE_PYTHON = "3.10"  # oldest Python for ftcluster_train, the package on the hosts
IPEX = ("intel_extension_for_pytorch", "torch_ipex")  # torch_ipex is the name before 1.10
CCL = "oneccl_bind_pt"
# errors that reading a damaged file can raise
DAMAGED = (OSError, ValueError, yaml.YAMLError, LookupError, TypeError, AttributeError)


@dataclass(frozen=True)
class Note:
    """A warning about a stack, or a reason why stacks do not meet requirements.

    Attributes:
        text: one sentence without a full stop.
        source: source of the text; empty if the text follows from the stacks themselves.
        explains: parts (torch, ipex, ccl, transformers, accelerate) that no stack combines, for the
            reason in `text`. The reason applies only to versions of the first part that are at
            least as new as the newest version in the stacks with this note.
    """

    text: str
    source: str = ""
    explains: tuple[str, ...] = ()


@dataclass(frozen=True)
class Advisory:
    """A known vulnerability of a version in a stack.

    Attributes:
        allows: possible action of an attacker.
        source: URL of the advisory.
        looked_at: date when the list of advisories was updated, such as 2026-11-26.
    """

    id: str
    package: str
    version: str
    allows: str
    source: str
    looked_at: str


@dataclass(frozen=True)
class Stack:
    """A set of matching versions.

    Attributes:
        name: name for `setup --stack`.
        state: default: installed by setup; supported: locked and tested; documented: known to
            match, but the stack is neither locked nor tested.
        python: first and last minor version of Python for which all packages have wheels.
        packages: exact versions by package name.
        backends: supported collective backends, the preferred one first.
        cpu_flags: instruction-set flags that a CPU must have.
        unverified: packages without a hash in the lock.
        tried: hardware on which ftcluster was tested with the stack; empty if it was not tested.
        warnings: facts that users should know before they install the stack.
        indexes: package index by package, for packages that do not use the default index.
        advisories: known vulnerabilities of the stack's versions of torch and transformers.
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
        """Return the version of the first of these packages that the stack contains, or "".

        >>> load_stacks()["native"].version("torch")
        '2.13.0'
        """
        versions = {canonicalize_name(name): version for name, version in self.packages.items()}
        return next((versions[n] for n in map(canonicalize_name, packages) if n in versions), "")

    @property
    def has_ipex(self) -> bool:
        """Return True if the stack contains Intel's extension for PyTorch."""
        return bool(self.version(*IPEX))

    @property
    def has_ccl(self) -> bool:
        """Return True if the stack contains oneCCL's binding for torch.distributed."""
        return bool(self.version(CCL))

    @property
    def missing_hashes(self) -> str:
        """Return the names of packages without a hash, as a string; "" if all packages have one."""
        return str(unverified(vars(self)))

    def fits_python(self, version: str) -> bool:
        """Return True if all packages have wheels for a Python version, such as 3.11 or 3.11.7."""
        first, last = (numbers(end) for end in self.python)
        return first <= numbers(version)[:2] <= last

    @property
    def host_python(self) -> tuple[str, str] | None:
        """Return the first and last Python with which `setup` can install the stack, or None."""
        first, last = self.python
        if numbers(last) < numbers(NODE_PYTHON):
            return None
        return max(first, NODE_PYTHON, key=numbers), last


def numbers(version: str) -> tuple[int, ...]:
    """Convert a version to numbers for comparisons: (2, 13, 0) for 2.13.0."""
    return tuple(int(part) for part in version.split("."))


def load_stacks(path: Path | None = None) -> dict[str, Stack]:
    """Return all stacks by name, in the order of the file: the default first, then the newest.

    Raises:
        StacksError: the file cannot be read or is damaged.
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
    """Return the known vulnerabilities from the file.

    Raises:
        StacksError: the file cannot be read or is damaged.
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
    """Return the stack with this name.

    Raises:
        UsageError: there is no such stack; the hint lists the most similar name and all names.
    """
    if name in stacks:
        return stacks[name]
    nearest = difflib.get_close_matches(name, stacks, n=1)
    guess = f"did you mean {nearest[0]}? " if nearest else ""
    raise UsageError(f"unknown stack '{name}'", f"{guess}known stacks: {', '.join(stacks)}")


def install_hint(having: Sequence[Stack]) -> str:
    """Return a hint for installing one of these stacks, preferably a locked one."""
    locked = [stack.name for stack in having if stack.state != "documented"]
    if locked:
        return f"stacks with it: {', '.join(locked)}; ftcluster setup --stack {locked[0]}"
    return f"stacks with it: {', '.join(stack.name for stack in having)}"
