"""Checks that a test runs each command that the pages show.

    FTCLUSTER_TEST_RECORD=FILE ./test all; FTCLUSTER_TEST_RECORD=FILE ./test long
    .venv-dev/bin/python -m tests.unit.documented FILE

names those that no test that passed has run, and that commands_not_run.yml does not have.
"""

import json
import re
import shlex
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import yaml

from tests.programs import ROOT
from tests.unit.commands import commands, kinds
from tests.unit.test_docs import PAGES

NOT_RUN: dict[str, list[str]] = yaml.safe_load(
    Path(__file__).with_name("commands_not_run.yml").read_text(encoding="utf-8")
)
SHOWN = [
    command
    for page in PAGES
    if page.parents[1] != ROOT / "roles"  # pages of roles have playbooks, which tests/roles runs
    for command in commands(page, ROOT)
]
WHERE = {kind: command.where for command in SHOWN for kind in command.kinds}
OURS = {kind for command in SHOWN if command.words[0] == "ftcluster" for kind in command.kinds}

_MAIN = "from ftcluster.cli.main import main"  # code of a Python process that calls the command


def run_by(argv: Sequence[str]) -> set[str]:
    """Return the commands of pages that a program ran, which may be a shell with a script."""
    for number, word in enumerate(argv):
        if word.endswith("/ftcluster") or word == "ftcluster" == argv[0] or _MAIN in word:
            words = argv[number + 1 :]
            return set() if "--help" in words else OURS & set(kinds(words))
    script = re.sub(r"\s*\\\n\s*", " ", "\n".join([" ".join(argv), *argv]))
    found = {kind for kind in set(WHERE) - OURS if re.search(_pattern(kind), script)}
    for own in re.findall(r"\bftcluster ([^\n;|&<>]+)", script):
        try:
            found |= OURS & set(kinds(shlex.split(own)))
        except ValueError:  # an incomplete quoted text is not a command
            continue
    return found


def _pattern(command: str) -> str:
    """Return a regular expression that matches a whole command."""
    return rf"(?<!\S){re.escape(command)}(?!\S)"


def wrong(argvs: Iterable[Sequence[str]]) -> list[str]:
    """Return the errors in the pages and in the list of commands that are not run."""
    ran = {kind for argv in argvs for kind in run_by(argv)}
    listed = {kind for found in NOT_RUN.values() for kind in found}
    return [
        *(
            f"{WHERE[kind]}: no test that passed ran: {kind}"
            for kind in sorted(set(WHERE) - ran - listed)
        ),
        *(f"commands_not_run.yml: a test ran: {kind}" for kind in sorted(listed & ran)),
    ]


if __name__ == "__main__":
    lines = Path(sys.argv[1]).read_text(encoding="utf-8").splitlines()
    found = wrong(argv for _, argv in map(json.loads, lines))
    print("\n".join(found) or f"each of {len(WHERE)} commands of the pages ran, or is on the list")
    sys.exit(bool(found))
