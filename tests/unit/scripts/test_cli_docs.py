"""docs/cli.md has every command, argument and option of the parser."""

import argparse
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from ftcluster.cli.commands import build_parser
from ftcluster.cli.parser import Parser
from scripts import cli_docs
from tests.programs import ROOT


def all_commands() -> Iterator[tuple[str, Parser]]:
    waiting = list(build_parser().commands.parsers.items())
    while waiting:
        name, parser = waiting.pop(0)
        yield name, parser
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                waiting += [(f"{name} {kind}", child) for kind, child in action.choices.items()]


COMMANDS = dict(all_commands())


def section(name: str) -> str:
    text = (ROOT / "docs/cli.md").read_text(encoding="utf-8")
    found = re.search(rf"^##+ ftcluster {name}\n.*?(?=^##|\Z)", text, re.MULTILINE | re.DOTALL)
    assert found, f"no section ftcluster {name}"
    return found[0]


def test_the_page_is_up_to_date() -> None:
    assert cli_docs.main(["--check"]) == 0, "run scripts/cli-docs"


@pytest.mark.parametrize("name", COMMANDS)
def test_a_section_has_the_options_that_the_help_prints(name: str) -> None:
    printed = COMMANDS[name].format_help().partition("\nexamples:")[0]
    options = set(re.findall(r"^  (?:-\w(?: [\w=@\[\]]+)?, )?(--[\w-]+)", printed, re.MULTILINE))
    shorts = set(re.findall(r"^  (-\w)\b", printed, re.MULTILINE)) - {"-h"}
    assert options or name in ("completion", "bench", "export"), printed
    missing = [one for one in options | shorts if f"`{one}" not in section(name)]
    assert set(missing) <= {"--limit", "--tags", "--extra-vars", "--user", "--help",
                            "--ask-become-pass", "--ask-pass", "--ask-vault-pass"}  # fmt: skip
    for long in set(missing) - {"--help"}:  # named by its short form, and once for all commands
        assert re.search(rf"^\| `-\w(?: \w+)?`, `{long}\b", cli_docs.PAGE.read_text(), re.MULTILINE)


def test_each_argument_has_a_help_text() -> None:
    silent = [
        f"{name} {action.option_strings or action.dest}"
        for name, parser in COMMANDS.items()
        for action in parser._actions
        if not action.help and not isinstance(action, argparse._SubParsersAction)
    ]
    assert silent == []


def test_a_page_that_is_not_up_to_date(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "cli.md"
    assert cli_docs.main(["--check"], page) == 1
    assert not page.exists()
    assert cli_docs.main([], page) == 0
    assert cli_docs.main(["--check"], page) == 0
    page.write_text(page.read_text().replace("`--spares N`", "`--spare N`"))
    capsys.readouterr()
    assert cli_docs.main(["--check"], page) == 1
    assert capsys.readouterr().err == "error: cli.md is not up to date; run scripts/cli-docs\n"


def test_guides_are_of_commands() -> None:
    assert cli_docs.GUIDES.keys() <= COMMANDS.keys()
    without = {name for name in COMMANDS if " " not in name} - cli_docs.GUIDES.keys()
    assert without == {"export", "version", "completion"}
