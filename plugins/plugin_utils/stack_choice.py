# Apache-2.0 (see LICENSE)
"""Which stack the hosts of a cluster get, and why. Pure functions only."""

from __future__ import annotations

from dataclasses import dataclass, field

AUTO = "auto"
DOCUMENTED = "documented"
NODE_PYTHON = (3, 10)  # the oldest that the package ftcluster_train runs on
LEAVE_OUT = "take the host out of the inventory"
FLAG_NAMES = {"avx2": "AVX2", "avx512f": "AVX512"}


@dataclass(frozen=True)
class Wish:
    """What the user asks for.

    Attributes:
        stack: a name, "auto", or "" for the bundle's, else the default.
        bundle: the bundle that is to be used, with `stack` and `target`, or None.
        allow_yanked: whether releases that their makers took back may be installed.
        allow_unverified: whether files may be installed for which no lock has a hash.
    """

    stack: str = ""
    bundle: object = None
    allow_yanked: bool = False
    allow_unverified: bool = False


@dataclass
class Choice:
    """A stack for all hosts.

    Attributes:
        stack: its name.
        why: the reason, one line.
        pythons: the path of the Python that each host makes it from.
        problems: for each host, what keeps it from having the stack, with what to do.
        notices: what is worth knowing.
    """

    stack: str
    why: str
    pythons: dict[str, str] = field(default_factory=dict)
    problems: dict[str, list[str]] = field(default_factory=dict)
    notices: list[str] = field(default_factory=list)


class ChoiceError(Exception):
    """No host can have what is asked for; says why and what to do."""


def choose(stacks, warnings, wish, hosts):
    """Choose a stack.

    Args:
        stacks: as stacks.yml has them, in its order.
        warnings: the texts of the stacks' warnings, by key, as {text, source}.
        wish: what the user asks for.
        hosts: facts of each host by name; none of them need be known.

    Raises:
        ChoiceError: there is no such stack, or it must not be installed, on any host.
    """
    name, why = _name(stacks, wish, hosts)
    stack = stacks[name]
    if version(stack["python"][1]) < NODE_PYTHON:
        raise ChoiceError(
            f"stack {name} ends with Python {stack['python'][1]}, and what trains on the hosts "
            f"needs {'.'.join(map(str, NODE_PYTHON))}; it is listed so that its parts are known. "
            "Others: ftcluster stacks"
        )
    if stack.get("yanked") and not wish.allow_yanked:
        taken = ", ".join(f"{p} {stack['packages'][p]}" for p in stack["yanked"])
        raise ChoiceError(
            f"stack {name} has {taken}, which its makers took back (most of them for security); "
            "to install it all the same: --allow-yanked (torch_stack_allow_yanked=true)"
        )
    bare = unverified(stack)
    if bare and not wish.allow_unverified:
        raise ChoiceError(
            f"stack {name} has {bare}, so nothing tells whether what an index gives is what it "
            "should be; to install it all the same: --allow-unverified "
            "(torch_stack_allow_unverified=true)"
        )
    choice = Choice(name, why)
    for host, facts in hosts.items():
        path, problem = python_for(stack, facts, name, wish.bundle)
        choice.pythons[host] = path
        choice.problems[host] = [
            *([problem] if problem else []),
            *_cpu_problems(stack, facts, name),
            *_bundle_problems(wish.bundle, facts),
        ]
    choice.notices = [f"stack {name}, because {why}"] if wish.stack == AUTO else []
    choice.notices += [
        f"stack {name}: {warnings[key]['text']} ({warnings[key]['source']})"
        for key in stack.get("warnings", ())
    ]
    if stack["state"] == DOCUMENTED:
        choice.notices.append(
            f"stack {name} is only documented: its parts match, but ftcluster has not tried it, "
            "and the versions of further packages are chosen at the download"
        )
    return choice


def unverified(stack):
    """What of a stack no lock has a hash of, in words, or nothing."""
    if stack["state"] == DOCUMENTED:
        return "no lock with the hashes of its packages"
    bare = ", ".join(f"{p} {stack['packages'][p]}" for p in stack.get("unverified", ()))
    return f"no hash of {bare}" if bare else ""


def _name(stacks, wish, hosts):
    """The name of the stack, and why this one."""
    default = next(name for name, stack in stacks.items() if stack["state"] == "default")
    bundled = getattr(wish.bundle, "stack", "")
    if bundled:
        if wish.stack not in ("", AUTO, bundled):
            raise ChoiceError(
                f"the bundle has stack {bundled}, not {wish.stack}; "
                f"leave the stack out, or make one: ftcluster bundle --stack {wish.stack}"
            )
        if bundled not in stacks:
            raise ChoiceError(f"the bundle has stack {bundled}, which this ftcluster does not know")
        return bundled, "it is the bundle's"
    if wish.stack == AUTO:
        return _automatic(stacks, hosts)
    if wish.stack and wish.stack not in stacks:
        raise ChoiceError(f"there is no stack {wish.stack}; there are auto, {', '.join(stacks)}")
    return (wish.stack, "as asked for") if wish.stack else (default, "it is the default")


def _automatic(stacks, hosts):
    """The first stack that is looked after and that every host can have."""
    against = []
    for name, stack in stacks.items():
        if stack["state"] == DOCUMENTED:
            continue
        found = {
            host: [p for p in (python_for(stack, facts, name)[1],) if p]
            + _cpu_problems(stack, facts, name)
            for host, facts in hosts.items()
        }
        refused = [f"{host}: {problems[0]}" for host, problems in found.items() if problems]
        if not refused:
            kind = "it is the default" if stack["state"] == "default" else "every host can have it"
            return name, "; ".join([kind, *against])
        against.append(f"not {name}, because of {refused[0]}")
    raise ChoiceError("no stack fits all hosts: " + "; ".join(against))


def version(text):
    """3.11.7 as (3, 11): the minor version decides about wheels."""
    return tuple(int(part) for part in text.split(".")[:2])


def python_for(stack, facts, name, bundle=None):
    """The path of the host's Python that a stack can be made from, and what is wrong if none.

    Ansible's own where it fits, which is known to work; else the newest that fits. Of a bundle, the
    one that its wheels are for.
    """
    there = facts.get("pythons", [])
    if not there:
        return "", ""
    first, last = (version(text) for text in stack["python"])
    if bundle:
        first = last = version(bundle.target.python)
    fitting = [p for p in there if max(first, NODE_PYTHON) <= version(p["version"]) <= last]
    if not fitting:
        have = ", ".join(p["version"] for p in there)
        if bundle:
            return "", (
                f"the bundle is for Python {bundle.target.python}, here is {have}; install that "
                "one, or make a bundle for another: ftcluster bundle --python X.Y"
            )
        oldest = ".".join(map(str, max(first, NODE_PYTHON)))
        newest = stack["python"][1]
        needed = f"Python {oldest}" + (f" to {newest}" if newest != oldest else "")
        own = ".".join(map(str, version(there[0]["version"])))
        return "", (
            f"stack {name} needs {needed}, here is {have}; install one of these, or see which "
            f"stack fits: ftcluster stacks --python {own}"
        )
    own = [p for p in fitting if p is there[0]]
    best = own[0] if own else max(fitting, key=lambda p: version(p["version"]))
    return best["path"], ""


def _cpu_problems(stack, facts, name):
    if "cpu_flags" not in facts:
        return []
    missing = [flag for flag in stack["cpu_flags"] if flag not in facts["cpu_flags"]]
    return [
        f"stack {name} needs a CPU with {' and '.join(FLAG_NAMES.get(f, f) for f in missing)}, "
        f"which {facts.get('cpu_model', 'this one')} has not; {LEAVE_OUT}"
        for _ in missing[:1]
    ]


def _bundle_problems(bundle, facts):
    """Where a bundle does not fit a host."""
    if bundle is None or not facts:
        return []
    target, problems = bundle.target, []
    if facts.get("machine", target.machine) != target.machine:
        problems.append(
            f"the bundle is for {target.machine}, this host is {facts['machine']}; {LEAVE_OUT}"
        )
    kind, _, number = facts.get("libc", "").partition(" ")
    if kind == "glibc" and version(number) < version(target.glibc):
        problems.append(
            f"the bundle needs glibc {target.glibc}, here is {number}; "
            f"make one for it: ftcluster bundle --glibc {number}"
        )
    elif kind not in ("", "glibc"):
        problems.append(f"the bundle needs glibc, here is {kind} {number}; {LEAVE_OUT}")
    return problems


def space_problems(needed, free, prefix, name):
    """What to say where a stack does not fit on a host's disk, or nothing."""
    if free >= needed:
        return []
    return [
        f"{free / 1e9:.1f} GB free at {prefix}, {needed / 1e9:.1f} GB are needed for stack {name}; "
        "free some space or choose another folder with -e ftcluster_prefix=DIR"
    ]
