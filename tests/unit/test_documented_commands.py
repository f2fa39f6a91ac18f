"""Every command that a page shows is one: documented_commands.yml says which test runs it."""

import contextlib
import io
import re
from collections import Counter
from pathlib import Path

import pytest
import yaml

from ftcluster.cli import main
from ftcluster.errors import UsageError
from tests.programs import ROOT
from tests.unit.commands import Command, commands
from tests.unit.test_docs import PAGES

LISTED = yaml.safe_load(Path(__file__).with_name("documented_commands.yml").read_text())
SHOWN = [
    command
    for page in PAGES
    if page.parents[1] != ROOT / "roles"  # they have playbooks, which tests/roles runs
    for command in commands(page, ROOT)
]
OURS = {kind for command in SHOWN if command.words[0] == "ftcluster" for kind in command.kinds}
KINDS = {kind: command.where for command in SHOWN for kind in command.kinds}


def problem(command: Command) -> str | None:
    """What the real parser says against a command of ftcluster; None for nothing."""
    words = command.words[1:]
    if command.inline and len(words) == 1:
        words.append("--help")
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            main.read_arguments(words)
    except SystemExit:  # --help
        return None
    except UsageError as error:
        return str(error)
    return None


def test_ftcluster_takes_all_of_its_commands() -> None:
    ours = [command for command in SHOWN if command.words[0] == "ftcluster"]
    wrong = [(one.where, one.text, said) for one in ours if (said := problem(one))]
    assert wrong == []


def test_mistakes_are_seen() -> None:
    for text in ("ftcluster sets", "ftcluster setup --bundel x", "ftcluster plan --nodes two"):
        assert problem(Command("page:1", text)), text
    assert problem(Command("page:1", "ftcluster sets", inline=True))


def test_each_is_listed_once_and_shown() -> None:
    listed = Counter(kind for part in LISTED.values() for kinds in part.values() for kind in kinds)
    new = {kind: where for kind, where in KINDS.items() if kind not in listed}
    assert new == {}, "add them to documented_commands.yml, with the test that runs them"
    assert set(listed) - set(KINDS) == set(), "no page shows them any more"
    assert max(listed.values()) == 1


@pytest.mark.parametrize("name", LISTED["run"])
def test_the_test_that_is_named_runs_it(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    if re.search(r'"docs/\w+\.md"', text):
        return  # it reads the commands from the page
    for kind in OURS & set(LISTED["run"][name]):
        missing = [word for word in kind.split() if not re.search(rf"[\s\"'/]{word}\b", text)]
        assert not missing, kind


def test_programs_and_playbooks_of_the_repository_exist() -> None:
    for command in SHOWN:
        for path in re.findall(r"\./(?:demo|test)\b|\b(?:scripts|tests)/[\w/.-]+", command.text):
            assert (ROOT / path).exists(), command
        for playbook in re.findall(r"ftcluster\.cluster\.(\w+)", command.text):
            assert (ROOT / f"playbooks/{playbook}.yml").exists(), command


# of a cloud's inventory plugin, which is no part of ftcluster
UNLOCKED = {"~/ftcluster/bin/pip install boto3 google-auth requests"}
LOCKED = {"--require-hashes", "--no-index"}
OWN = {"--no-deps", "--no-build-isolation"}  # else pip downloads what builds it


def test_ftcluster_is_installed_from_its_lock_only() -> None:
    texts = {one.text for one in SHOWN if re.search(r"\bpip (install|wheel|download)\b", one.text)}
    loose = {
        text
        for text in texts - UNLOCKED
        if text.startswith("~/ftcluster/bin/pip")
        and not (LOCKED & set(text.split()) or set(text.split()) >= OWN)
    }
    assert loose == set()
    assert any("--require-hashes -r requirements/control.txt" in text for text in texts)


def test_commands_are_found_in_a_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        """Write `ftcluster ps --json` or `ps`.

    $ A=1 ftcluster train --nodes N      # all
    output
      ftcluster stop RUN
    ftcluster  cli
    scripts/docs && ftcluster setup \\
      --stack auto

```ini
ftcluster plan
```
"""
    )
    found = commands(page, tmp_path)
    assert [(one.where, one.text) for one in found] == [
        ("page.md:1", "ftcluster ps --json"),
        ("page.md:3", "A=1 ftcluster train --nodes N"),
        ("page.md:7", "scripts/docs"),
        ("page.md:7", "ftcluster setup --stack auto"),
    ]
    assert found[1].words == ["ftcluster", "train", "--nodes", "1"]
    assert found[3].kinds == ["setup", "setup --stack"]
    assert Command("", "ftcluster run [--nodes N] -- a.py --b").kinds == ["run", "run --nodes"]
