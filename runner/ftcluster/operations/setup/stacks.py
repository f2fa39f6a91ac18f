"""List the stacks (sets of matching versions), and find the stacks that meet requirements."""

from collections.abc import Iterable, Mapping
from typing import Any

from ftcluster.operations.result import Result
from ftcluster.stacks.catalog import (
    CCL,
    IPEX,
    NODE_PYTHON,
    Advisory,
    Note,
    Stack,
    find_stack,
    load_stacks,
)
from ftcluster.stacks.resolver import PARTS, Match, Requirement, resolve
from ftcluster.text.table import aligned

__all__ = ["CCL", "PARTS"]
HEAD = ("stack", "state", "torch", "IPEX", CCL, "transformers", "Python", "known CVEs")


def stacks(required: Mapping[str, str | bool]) -> tuple[Result, bool]:
    """Return the stacks that meet requirements, and True if there is at least one.

    Args:
        required: required version of each part, see `stacks.resolver.PARTS`. True allows any
            version, and False requires that the stack lacks the part. If empty, all stacks are
            returned. With only the key `stack`, that stack is returned with all its packages.

    Raises:
        UsageError: there is no such stack, or a version is not valid.
    """
    catalog = load_stacks()
    if not required:
        everything = {"stacks": [stack_document(stack) for stack in catalog.values()]}
        return Result(everything, tuple(overview(catalog.values()))), True
    if list(required) == ["stack"]:
        stack = find_stack(str(required["stack"]), catalog)
        return Result(stack_document(stack), tuple(details(stack))), True
    requirements = [Requirement(part, value) for part, value in required.items()]
    match = resolve(requirements, catalog)
    lines = match_lines(match, ", ".join(map(str, requirements)))
    document = {"wish": dict(required), **match_document(match)}
    return Result(document, tuple(lines)), bool(match.exact)


def overview(stacks: Iterable[Stack]) -> list[str]:
    """Return the table of all stacks."""
    return [
        *table(stacks),
        "* yanked from the package index; setup installs it only with --allow-yanked",
        "",
        "to list all packages of a stack: ftcluster stacks NAME",
    ]


def table(stacks: Iterable[Stack]) -> list[str]:
    """Return a table with headings and one line per stack."""
    return aligned([HEAD, *map(_row, stacks)])


def _row(stack: Stack) -> tuple[str, ...]:
    mark = "*" if set(stack.yanked) & set(IPEX) else ""
    return (
        stack.name,
        stack.state,
        stack.version("torch"),
        f"{stack.version(*IPEX) or '-'}{mark}",
        stack.version(CCL) or "-",
        stack.version("transformers"),
        "-".join(dict.fromkeys(stack.python)),
        str(len(stack.advisories) or "-"),
    )


def install_command(stack: Stack) -> str:
    """Return the command that installs a stack, or "" if setup cannot install it."""
    if stack.host_python is None:
        return ""
    options = ["--allow-yanked"] * bool(stack.yanked)
    options += ["--allow-unverified"] * bool(stack.missing_hashes)
    return " ".join(["ftcluster setup --stack", stack.name, *options])


def cautions(stack: Stack) -> list[str]:
    """Return warnings for users who install a stack, from the stack's own data."""
    needs = f"ftcluster's package on the hosts needs Python {NODE_PYTHON} or newer"
    lines = []
    if stack.host_python is None:
        lines.append(f"ftcluster cannot install it, because {needs}")
    elif stack.host_python != stack.python:
        pythons = " to ".join(dict.fromkeys(stack.host_python))
        lines.append(f"ftcluster installs it only with Python {pythons}, because {needs}")
    if stack.yanked:
        yanked = ", ".join(f"{package} {stack.packages[package]}" for package in stack.yanked)
        lines.append(f"{yanked} is yanked: setup needs --allow-yanked")
    if stack.state == "documented":
        lines.append("only documented: its versions match, but it was not tested with ftcluster")
    if stack.missing_hashes:
        lines.append(f"there is {stack.missing_hashes}: setup needs --allow-unverified")
    return lines


def details(stack: Stack) -> list[str]:
    """Return a stack with all its packages and warnings, as text."""
    facts = [
        ("state", stack.state),
        ("Python", "-".join(dict.fromkeys(stack.python))),
        ("CPU", f"with {', '.join(stack.cpu_flags)}"),
        ("backends", ", ".join(stack.backends)),
        ("tested on", stack.tried or "-"),
        ("install", install_command(stack) or "-"),
    ]
    packages = [
        (name, version, f"index {stack.indexes[name]}" if name in stack.indexes else "")
        for name, version in stack.packages.items()
    ]
    lines = [f"{stack.name}: {stack.summary}", *_indented(aligned(facts))]
    lines += ["packages", *_indented(aligned(packages))]
    warnings = [*cautions(stack), *map(_with_source, stack.warnings)]
    lines += [*(["warnings"] if warnings else []), *_indented(warnings)]
    if stack.advisories:
        lines.append(f"known vulnerabilities, as of {stack.advisories[0].looked_at}")
    return lines + _indented(map(_advisory_line, stack.advisories))


def _advisory_line(advisory: Advisory) -> str:
    version = f"{advisory.package} {advisory.version}"
    return f"{advisory.id}, {version}: {advisory.allows} ({advisory.source})"


def _with_source(note: Note) -> str:
    return f"{note.text} ({note.source})" if note.source else note.text


def _indented(lines: Iterable[str]) -> list[str]:
    return [f"  {line}" for line in lines]


def match_lines(match: Match, required: str) -> list[str]:
    """Format a match: the stacks that meet the requirements, or the nearest stacks and reasons."""
    if not match.exact:
        rows = [
            (s.name, s.state, "; ".join(missed), install_command(s) or "cannot be installed")
            for s, missed in match.nearest
        ]
        reasons = map(_with_source, match.reasons)
        return [f"{required}: no", *_indented(reasons), "nearest:", *_indented(aligned(rows))]
    best = match.exact[0]
    command = install_command(best)
    lines = [f"{required}: yes", *_indented(table(match.exact))]
    lines += [f"install: {command}"] if command else []
    return lines + [f"{best.name}: {caution}" for caution in cautions(best)]


def stack_document(stack: Stack) -> dict[str, Any]:
    """Return a stack for `--json`; `install` is None if setup cannot install it."""
    return {
        **{key: value for key, value in vars(stack).items() if key != "warnings"},
        "advisories": [dict(vars(advisory)) for advisory in stack.advisories],
        "warnings": _note_documents(stack.warnings),
        "cautions": cautions(stack),
        "install": install_command(stack) or None,
    }


def match_document(match: Match) -> dict[str, Any]:
    """Return a match for `--json`."""
    return {
        "possible": bool(match.exact),
        "stacks": [stack_document(stack) for stack in match.exact],
        "nearest": [{**stack_document(stack), "missed": missed} for stack, missed in match.nearest],
        "reasons": _note_documents(match.reasons),
    }


def _note_documents(notes: Iterable[Note]) -> list[dict[str, str]]:
    return [{"text": note.text, "source": note.source} for note in notes]
