# Apache-2.0 (see LICENSE)
"""Chooses the stack for the hosts of a cluster. Pure functions only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ansible_collections.ftcluster.cluster.plugins.plugin_utils.sizes import free_and_needed

if TYPE_CHECKING:
    from ansible_collections.ftcluster.cluster.plugins.plugin_utils.bundle import Bundle

Stacks = Mapping[str, Mapping[str, Any]]
Hosts = Mapping[str, Mapping[str, Any]]
AUTO = "auto"
DOCUMENTED = "documented"
NODE_PYTHON = (3, 10)  # oldest Python for the package ftcluster_train
LEAVE_OUT = "remove the host from the inventory"
FLAG_NAMES = {"avx2": "AVX2", "avx512f": "AVX512"}


@dataclass(frozen=True)
class StackRequest:
    """The user's request for a stack, and the cluster's present stack.

    Attributes:
        stack: name of a stack, or "auto". If empty, the bundle's stack is used, or else the present
            stack, or else the default stack.
        bundle: bundle to install from, or None.
        present: name of the stack that the cluster has, or "".
        allow_yanked: True if yanked releases may be installed.
        allow_unverified: True if files without a hash in a lock may be installed.
    """

    stack: str = ""
    bundle: Bundle | None = None
    allow_yanked: bool = False
    allow_unverified: bool = False
    present: str = ""


@dataclass
class Choice:
    """A stack for all hosts.

    Attributes:
        pythons: path of the Python to use, by host.
        problems: reasons why the stack cannot be installed on a host, as {what, hint}, by host.
        notices: warnings about the stack.
    """

    stack: str
    why: str
    pythons: dict[str, str] = field(default_factory=dict)
    problems: dict[str, list[dict[str, str]]] = field(default_factory=dict)
    notices: list[str] = field(default_factory=list)


class ChoiceError(Exception):
    """The stack cannot be installed on any host; the message contains the reason and advice."""


def choose(stacks: Stacks, warnings: Stacks, wanted: StackRequest, hosts: Hosts) -> Choice:
    """Choose a stack and a Python for each host.

    Args:
        stacks: entries of stacks.yml, in its order.
        warnings: warnings about stacks as {text, source}, by key.
        wanted: the user's request.
        hosts: facts by host name; any fact may be missing.

    Raises:
        ChoiceError: the stack does not exist, or must not be installed on any host.
    """
    name, why = _name(stacks, wanted, hosts)
    stack = stacks[name]
    _check_allowed(name, stack, wanted)
    choice = Choice(name, why)
    for host, facts in hosts.items():
        path, problems = python_for(stack, facts, name, wanted.bundle)
        problems += _cpu_problems(stack, facts, name) + _bundle_problems(wanted.bundle, facts)
        choice.pythons[host], choice.problems[host] = path, problems
    default = stack["state"] == "default"
    shows = wanted.stack == AUTO or (name == wanted.present and not (default or wanted.stack))
    choice.notices = [f"using stack {name}, because {why}"] if shows else []
    if wanted.present not in ("", name):
        choice.notices.append(f"stack {name} replaces {wanted.present}, because {why}")
    choice.notices += [
        f"stack {name}: {warnings[key]['text']} ({warnings[key]['source']})"
        for key in stack.get("warnings", ())
    ]
    if stack["state"] == DOCUMENTED:
        choice.notices.append(
            f"stack {name} is only documented: its packages match, but ftcluster is not tested "
            "with it, and pip chooses the versions of all other packages when it downloads them"
        )
    return choice


def _check_allowed(name: str, stack: Mapping[str, Any], wanted: StackRequest) -> None:
    if version(stack["python"][1]) < NODE_PYTHON:
        raise ChoiceError(
            f"stack {name} supports Python up to {stack['python'][1]}, but the package that trains "
            f"on the hosts needs {'.'.join(map(str, NODE_PYTHON))}; the stack is listed only to "
            f"document its parts. To list other stacks: ftcluster stacks"
        )
    if stack.get("yanked") and not wanted.allow_yanked:
        yanked = ", ".join(f"{p} {stack['packages'][p]}" for p in stack["yanked"])
        raise ChoiceError(
            f"stack {name} contains yanked releases ({yanked}; most are yanked for security); "
            "to install it anyway: --allow-yanked (torch_stack_allow_yanked=true)"
        )
    bare = unverified(stack)
    if bare and not wanted.allow_unverified:
        raise ChoiceError(
            f"stack {name} has {bare}, so files from an index cannot be verified; to install it "
            "anyway: --allow-unverified (torch_stack_allow_unverified=true)"
        )


def unverified(stack: Mapping[str, Any]) -> str:
    """Return the names of a stack's packages that have no hash in the lock, as a phrase, or ""."""
    if stack["state"] == DOCUMENTED:
        return "no lock with the hashes of its packages"
    bare = ", ".join(f"{p} {stack['packages'][p]}" for p in stack.get("unverified", ()))
    return f"no hash of {bare}" if bare else ""


def _name(stacks: Stacks, wanted: StackRequest, hosts: Hosts) -> tuple[str, str]:
    """Return the name of the chosen stack, and the reason for the choice."""
    default = next(name for name, stack in stacks.items() if stack["state"] == "default")
    bundled = getattr(wanted.bundle, "stack", "")
    if bundled:
        if wanted.stack not in ("", AUTO, bundled):
            raise ChoiceError(
                f"the bundle contains stack {bundled}, not {wanted.stack}; omit --stack, or make "
                f"another bundle: ftcluster bundle --stack {wanted.stack}"
            )
        if bundled not in stacks:
            raise ChoiceError(
                f"the bundle contains stack {bundled}, which this version of ftcluster lacks"
            )
        return bundled, "the bundle contains it"
    if wanted.stack == AUTO:
        return _automatic(stacks, hosts)
    if wanted.stack and wanted.stack not in stacks:
        raise ChoiceError(
            f"there is no stack {wanted.stack}; choose one of auto, {', '.join(stacks)}"
        )
    if wanted.stack:
        return wanted.stack, "you requested it"
    if not wanted.present:
        return default, "it is the default"
    if wanted.present not in stacks:
        raise ChoiceError(
            f"the cluster uses stack {wanted.present}, which this version of ftcluster lacks: "
            "install the version that set up the cluster, or choose another stack: --stack NAME"
        )
    return wanted.present, "the cluster uses it; to choose another one: --stack NAME"


def _automatic(stacks: Stacks, hosts: Hosts) -> tuple[str, str]:
    """Return the first supported stack that fits every host, and the reason for the choice."""
    against = []
    for name, stack in stacks.items():
        if stack["state"] == DOCUMENTED:
            continue
        for host, facts in hosts.items():
            problems = python_for(stack, facts, name)[1] + _cpu_problems(stack, facts, name)
            if problems:
                against.append(f"not {name}, because of {host}: {problems[0]['what']}")
                break
        else:
            kind = "it is the default" if stack["state"] == "default" else "it fits every host"
            return name, "; ".join([kind, *against])
    raise ChoiceError("no stack fits all hosts: " + "; ".join(against))


def _finding(what: str, hint: str) -> dict[str, str]:
    return {"what": what, "hint": hint}


def version(text: str) -> tuple[int, ...]:
    """Convert 3.11.7 to (3, 11), because wheels depend only on the minor version."""
    return tuple(int(part) for part in text.split(".")[:2])


def python_for(
    stack: Mapping[str, Any], facts: Mapping[str, Any], name: str, bundle: Bundle | None = None
) -> tuple[str, list[dict[str, str]]]:
    """Return the path of a host's Python that fits a stack, and problems if there is none.

    Prefer the user's Python, then Ansible's Python (because it certainly runs), then the newest
    Python. With a bundle, the Python must have the version of the bundle's wheels.
    """
    if facts.get("python_refused"):
        return "", [facts["python_refused"]]
    there = facts.get("pythons", [])
    if not there:
        return "", []
    first, last = (version(text) for text in stack["python"])
    if bundle:
        first = last = version(bundle.target.python)
    # Ubuntu 22.04's python3.11 is 3.11.0rc1, with which torch 2.13 does not start
    released = [p for p in there if p["version"].replace(".", "").isdigit()]
    fitting = [p for p in released if max(first, NODE_PYTHON) <= version(p["version"]) <= last]
    if fitting:
        newest = max(fitting, key=lambda p: version(p["version"]))
        return (there[0] if there[0] in fitting else newest)["path"], []
    have = ", ".join(p["version"] + ("" if p in released else " (not a release)") for p in there)
    oldest, newest = ".".join(map(str, max(first, NODE_PYTHON))), ".".join(map(str, last))
    named = (
        f"install Python {newest} on the host and name its path: "
        f"-e ftcluster_python=/opt/python{newest}/bin/python{newest}"
    )
    if bundle:
        what = f"the bundle is for Python {bundle.target.python}, but the host has {have}"
        return "", [
            _finding(
                what,
                f"{named}; or make a bundle for a Python of this host: ftcluster bundle --python "
                f"X.Y",
            )
        ]
    needed = oldest + (f" to {newest}" if newest != oldest else "")
    own = version(there[0]["version"])
    if own < first:
        named = (
            "install one of these (ansible-playbook -i INVENTORY ftcluster.cluster.python installs "
            f"the distribution's python3.11), or {named}"
        )
    hint = f"{named}; or list the stacks that fit: ftcluster stacks --python {own[0]}.{own[1]}"
    return "", [_finding(f"stack {name} needs Python {needed}, but the host has {have}", hint)]


def _cpu_problems(
    stack: Mapping[str, Any], facts: Mapping[str, Any], name: str
) -> list[dict[str, str]]:
    there = facts.get("cpu_flags", stack["cpu_flags"])
    missing = [FLAG_NAMES.get(flag, flag) for flag in stack["cpu_flags"] if flag not in there]
    if not missing:
        return []
    what = f"stack {name} needs a CPU with {' and '.join(missing)}"
    model = facts.get("cpu_model", "another CPU")
    return [_finding(f"{what}, but the host has {model}", LEAVE_OUT)]


def _bundle_problems(bundle: Bundle | None, facts: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return the reasons why a bundle does not fit a host."""
    if bundle is None or not facts:
        return []
    target, problems = bundle.target, []
    if facts.get("machine", target.machine) != target.machine:
        what = f"the bundle is for {target.machine}, but the host is {facts['machine']}"
        problems.append(_finding(what, LEAVE_OUT))
    kind, number = facts.get("libc", "").partition(" ")[::2]
    if kind == "glibc" and version(number) < version(target.glibc):
        what = f"the bundle needs glibc {target.glibc}, but the host has {number}"
        problems.append(
            _finding(what, f"make a bundle for this host: ftcluster bundle --glibc {number}")
        )
    elif kind not in ("", "glibc"):
        problems.append(
            _finding(f"the bundle needs glibc, but the host has {kind} {number}", LEAVE_OUT)
        )
    return problems


def space_problems(needed: int, free: int, prefix: str, name: str) -> list[dict[str, str]]:
    """Return a problem if a host's disk has too little space for a stack."""
    if free >= needed:
        return []
    available, required = free_and_needed(free, needed)
    what = f"only {available} are free at {prefix}, but stack {name} needs {required}"
    hint = "free some space or choose another folder with -e ftcluster_prefix=DIR"
    return [{**_finding(what, hint), "needed_bytes": str(needed)}]
