"""Options that count once are refused if they are given twice; the others are collected."""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ftcluster.cli.ansible_options import extra_variables
from ftcluster.cli.commands import build_parser
from ftcluster.errors import UsageError
from tests.unit.shell import Shell

# what may be repeated; all other options with a value count once
COLLECTED = {
    "--data", "plan --facts", "--env", "--tag", "--inventory", "--find-links", "--node-selector",
    "--tags", "--skip-tags", "--extra-vars", "--vault-password-file", "--vault-id",
}  # fmt: skip

ONCE = {"export-model --data"}


def options_of(
    parser: argparse.ArgumentParser, path: tuple[str, ...] = ()
) -> Iterator[tuple[argparse.ArgumentParser, tuple[str, ...], argparse.Action]]:
    """Yield each command's parser, its name, and each of its options with a value."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, command in action.choices.items():
                yield from options_of(command, (*path, name))
        elif action.option_strings and action.nargs != 0:
            yield parser, path, action


def two_values(action: argparse.Action) -> tuple[str, str]:
    """Return two values that the option takes."""
    kind: Any = action.type or str
    guesses = [*map(str, action.choices or ())]
    guesses += ["3", "4", "5", "a.py", "b.py", "1.5", "2.5", "a=1", "b=2", "1h", "2h"]
    taken = []
    for guess in guesses:
        try:
            kind(guess)
        except (argparse.ArgumentTypeError, ValueError, TypeError, UsageError):
            continue
        taken.append(guess)
    return taken[0], taken[1]


def test_each_option_of_each_command_that_counts_once_is_taken_once() -> None:
    main = build_parser()
    checked = 0
    for parser, path, action in options_of(main):
        for other in parser._actions:
            other.required = False  # the command line has only the repeated option
        name = action.option_strings[-1]
        first, second = two_values(action)
        nargs = action.nargs if isinstance(action.nargs, int) else 1
        twice = [name, *[first] * nargs, name, *[second] * nargs]
        whole = " ".join((*path, name))
        if whole not in ONCE and {name, whole} & COLLECTED:
            found = vars(parser.parse_known_args(twice)[0])[action.dest]
            assert len(found) == 2, (path, name)
            continue
        with pytest.raises(UsageError, match="set twice, to ") as caught:
            parser.parse_known_args(twice)
        message = str(caught.value)
        assert name in message, path
        for value in map(action.type or str, (first, second)):  # type: ignore[operator]
            shown = ",".join(value) if isinstance(value, tuple) else str(value)
            assert shown in message, (path, name)
        checked += 1
    assert checked > 150


def test_a_repeated_option_ends_with_2_and_names_both_values(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for words, both in (
        ("train mrpc --model a --model b --dry-run", "to a and b"),
        ("train mrpc --nodes 1 --nodes=2", "to 1 and 2"),
        ("setup inventory.ini --limit a -l b", "to a and b"),
        ("export-model onnx run --data a.csv --data b.csv", "to a.csv and b.csv"),
        ("check -u root inventory.ini --user admin", "to root and admin"),
    ):
        assert both in shell(words, 2).err


def test_variables_of_ansible_are_collected() -> None:
    assert extra_variables(["-e", "a=1", "--extra-vars", "b=2"]) == ("a=1", "b=2")
