"""`ftcluster stacks [NAME]`: which versions match."""

import argparse
import json
from collections.abc import Iterable, Sequence
from typing import Any

from ftcluster.errors import UsageError
from ftcluster.stacks.catalog import CCL, IPEX, NODE_PYTHON, Stack, find_stack, load_stacks
from ftcluster.stacks.resolver import Answer, Wish, listed, resolve
from ftcluster.text.table import aligned

HEAD = ("stack", "state", "torch", "IPEX", "oneccl_bind_pt", "transformers", "Python")
NONE = "none"


def add_parser(verbs: Any) -> None:
    """Add the verb to the command line."""
    parser = verbs.add_parser(
        "stacks",
        help="which versions match",
        description="Lists the stacks, sets of versions that match; tells all about one; or finds "
        "those that have what you wish, and says why where none has. A version stands for all that "
        "begin with it; `latest` is the highest known.",
        usage="ftcluster stacks [NAME] [options]",
    )
    parser.add_argument("words", nargs="*", metavar="NAME", help="a stack")
    parser.add_argument("--torch", metavar="VERSION")
    parser.add_argument("--transformers", metavar="VERSION")
    parser.add_argument("--accelerate", metavar="VERSION")
    for option, what in (("--ipex", "IPEX"), ("--ccl", "oneccl_bind_pt")):
        parser.add_argument(
            option,
            nargs="?",
            const=True,
            metavar="VERSION",
            help=f"with {what}, in any version if none is given; `{NONE}`: without",
        )
    parser.add_argument("--python", metavar="VERSION", help="of the hosts")
    parser.add_argument("--json", action="store_true", help="the result as one JSON document")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the verb; returns the exit code: 1 where no stack has what is wished for."""
    if len(options.words) > 1:
        raise UsageError(f"one stack at a time, not {', '.join(options.words)}")
    stacks = load_stacks()
    name = options.words[0] if options.words else None
    wish = Wish(
        stack=name,
        torch=options.torch,
        transformers=options.transformers,
        accelerate=options.accelerate,
        ipex=False if options.ipex == NONE else options.ipex,
        ccl=False if options.ccl == NONE else options.ccl,
        python=options.python,
    )
    if not wish.to_dict():
        everything = tuple(stacks.values())
        _print(options, {"stacks": [stack_document(s) for s in everything]}, overview(everything))
        return 0
    if name is not None and wish == Wish(stack=name):
        stack = find_stack(name, stacks)
        _print(options, stack_document(stack), details(stack))
        return 0
    answer = resolve(wish, stacks)
    _print(options, answer_document(wish, answer), answer_lines(answer))
    return 0 if answer.possible else 1


def _print(options: argparse.Namespace, document: dict[str, Any], lines: Iterable[str]) -> None:
    print(json.dumps(document) if options.json else "\n".join(lines))


def overview(stacks: Sequence[Stack]) -> list[str]:
    """All stacks as a table."""
    lines = table(stacks)
    if any(stack.yanked for stack in stacks):
        lines += ["* taken back by its makers; setup installs it with --allow-yanked only"]
    return [*lines, "", "all about one: ftcluster stacks NAME"]


def table(stacks: Iterable[Stack]) -> list[str]:
    """A line a stack, under a line of headings."""
    return aligned([HEAD, *map(_row, stacks)])


def _row(stack: Stack) -> tuple[str, ...]:
    mark = "*" if set(stack.yanked) & set(IPEX) else ""
    return (
        stack.name,
        stack.state,
        stack.version("torch"),
        f"{stack.version(*IPEX)}{mark}" if stack.has_ipex else "-",
        stack.version(CCL) or "-",
        stack.version("transformers"),
        _span(stack.python),
    )


def _span(python: tuple[str, str]) -> str:
    return python[0] if python[0] == python[1] else f"{python[0]}-{python[1]}"


def install_command(stack: Stack) -> str:
    """The command that installs a stack, or "" where setup cannot."""
    if stack.host_python is None:
        return ""
    words = ["--allow-yanked"] * bool(stack.yanked) + ["--allow-unverified"] * bool(stack.bare)
    return " ".join(["ftcluster setup --stack", stack.name, *words])


def cautions(stack: Stack) -> list[str]:
    """What stands between a user and this stack, from its own data."""
    found = []
    if stack.host_python is None:
        found.append(
            f"ftcluster cannot install it: its own package on the hosts needs Python {NODE_PYTHON}"
        )
    elif stack.host_python != stack.python:
        found.append(
            f"ftcluster installs it with Python {' to '.join(dict.fromkeys(stack.host_python))} "
            f"only: its own package on the hosts needs {NODE_PYTHON}"
        )
    if stack.yanked:
        taken = listed([f"{package} {stack.packages[package]}" for package in stack.yanked])
        found.append(f"{taken} was taken back by its makers: setup wants --allow-yanked")
    if stack.state == "documented":
        found.append("only documented: its parts match, but ftcluster has not tried it")
    if stack.bare:
        found.append(f"there is {stack.bare}: setup wants --allow-unverified")
    return found


def details(stack: Stack) -> list[str]:
    """All about one stack."""
    facts = [
        ("state", stack.state),
        ("Python", _span(stack.python)),
        ("CPU", f"with {', '.join(stack.cpu_flags)}"),
        ("backends", ", ".join(stack.backends)),
        ("trained with", stack.tried or "not by ftcluster"),
        ("install", install_command(stack) or "-"),
    ]
    packages = [
        (name, version, f"index {stack.indexes[name]}" if name in stack.indexes else "")
        for name, version in stack.packages.items()
    ]
    lines = [f"{stack.name}: {stack.summary}", *_indented(aligned(facts))]
    lines += ["packages", *_indented(aligned(packages))]
    known = [f"{note.text} ({note.source})" for note in stack.warnings]
    if known or cautions(stack):
        lines += ["to know before", *_indented([*cautions(stack), *known])]
    return lines


def _indented(lines: Iterable[str]) -> list[str]:
    return [f"  {line}" for line in lines]


def answer_lines(answer: Answer) -> list[str]:
    """The answer to a wish, for a person."""
    wish = listed(answer.wish)
    if answer.possible:
        best = answer.exact[0]
        command = install_command(best)
        lines = [f"{wish}: yes", *_indented(table(answer.exact))]
        if command:
            lines.append(f"install: {command}")
        return lines + [f"{best.name}: {caution}" for caution in cautions(best)]
    reasons = [
        f"{note.text} ({note.source})" if note.source else note.text for note in answer.reasons
    ]
    rows = [
        (
            near.stack.name,
            near.stack.state,
            "; ".join(near.missed),
            install_command(near.stack) or "ftcluster cannot install it",
        )
        for near in answer.nearest
    ]
    return [f"{wish}: no", *_indented(reasons), "nearest:", *_indented(aligned(rows))]


def stack_document(stack: Stack) -> dict[str, Any]:
    """One stack for `--json`; `install` is None where setup cannot install it."""
    return {
        "name": stack.name,
        "summary": stack.summary,
        "state": stack.state,
        "python": list(stack.python),
        "packages": stack.packages,
        "backends": list(stack.backends),
        "cpu_flags": list(stack.cpu_flags),
        "yanked": list(stack.yanked),
        "unverified": list(stack.unverified),
        "tried": stack.tried,
        "indexes": stack.indexes,
        "warnings": [{"text": note.text, "source": note.source} for note in stack.warnings],
        "cautions": cautions(stack),
        "install": install_command(stack) or None,
    }


def answer_document(wish: Wish, answer: Answer) -> dict[str, Any]:
    """The answer to a wish for `--json`."""
    return {
        "wish": wish.to_dict(),
        "possible": answer.possible,
        "stacks": [stack_document(stack) for stack in answer.exact],
        "nearest": [
            {**stack_document(near.stack), "missed": list(near.missed)} for near in answer.nearest
        ],
        "reasons": [{"text": note.text, "source": note.source} for note in answer.reasons],
    }
