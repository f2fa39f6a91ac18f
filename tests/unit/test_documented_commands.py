"""Every command on a page is valid; documented.py compares commands that ran with the pages."""

import contextlib
import functools
import io
import re
from collections import Counter
from pathlib import Path

import pytest

from ftcluster.cli import commands as command_line
from ftcluster.errors import UsageError
from ftcluster.stacks.catalog import load_stacks
from ftcluster.user_script.compatibility import incompatibilities
from tests.programs import ROOT
from tests.unit.commands import Command, commands
from tests.unit.documented import NOT_RUN, SHOWN, WHERE, run_by, wrong


def problem(command: Command) -> str | None:
    """Return the real parser's objection to a command of ftcluster; None if it has none."""
    words = command.words[1:]
    if command.inline and len(words) == 1:
        words.append("--help")
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            command_line.read_arguments(words)
    except SystemExit:  # --help
        return None
    except UsageError as error:
        return str(error)
    return None


def test_ftcluster_takes_all_of_its_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command_line, "build_parser", functools.cache(command_line.build_parser))
    ours = {one.text: one for one in SHOWN if one.words[0] == "ftcluster"}.values()
    refused = [(one.where, one.text, said) for one in ours if (said := problem(one))]
    assert refused == []


def test_mistakes_are_seen() -> None:
    for text in ("ftcluster sets", "ftcluster setup --bundel x", "ftcluster plan --nodes two"):
        assert problem(Command("page:1", text)), text
    assert problem(Command("page:1", "ftcluster sets", inline=True))


def test_the_list_has_what_pages_show_and_each_once() -> None:
    listed = Counter(kind for found in NOT_RUN.values() for kind in found)
    assert set(listed) - set(WHERE) == set(), "no page shows them any more"
    assert max(listed.values()) == 1


@pytest.mark.parametrize(
    ("argv", "ran"),
    [
        (["/a/.venv/bin/ftcluster", "setup", "i.ini", "--check"], {"setup", "setup --check"}),
        (["python", "-c", "from ftcluster.cli.main import main", "ps"], {"ps"}),
        (["nsenter", "/a/.venv/bin/ftcluster", "setup", "--prune"], {"setup", "setup --prune"}),
        (["ftcluster", "run", "--fast", "--", "train.py", "--nodes"], {"run", "run --fast"}),
        (["sh", "-c", "cd x && bin/ftcluster export slurm -o job.sh; ls"],
         {"export slurm", "export slurm -o"}),
        (["sh", "-c", "set -e\nansible-galaxy collection install ./ftcluster-cluster-*.tar.gz\n"],
         {"ansible-galaxy collection install ./ftcluster-cluster-*.tar.gz"}),
        (["./demo", "--json"], {"./demo"}),
        (["./demos"], set()),
        (["ftcluster", "setup", "--help"], set()),
        (["ls", "/var/lib/ftcluster"], set()),
        (["ftcluster", "no-command", "--no-option"], set()),
    ],
)  # fmt: skip
def test_what_a_program_ran(argv: list[str], ran: set[str]) -> None:
    assert run_by(argv) == ran


def test_what_did_not_run_and_what_the_list_is_wrong_about() -> None:
    said = wrong([["ftcluster", "ps"], ["ftcluster", "demo"]])
    assert any(one.endswith(": no test that passed ran: setup") for one in said)
    assert "commands_not_run.yml: a test ran: demo" in said
    assert not [one for one in said if one.endswith((" ran: ps", " ran: kubectl"))]


def test_scripts_of_the_pages_are_not_refused() -> None:
    """Flags of such scripts fit the default stack."""
    stacks = load_stacks()
    stack = next(one for one in stacks.values() if one.state == "default")
    run = [one for one in SHOWN if one.words[:2] == ["ftcluster", "run"] and "--" in one.words]
    assert any("--bf16" in one.words for one in run)
    for command in run:
        own = command.words[command.words.index("--") + 1 :]
        wrong = incompatibilities(None, own, stack, stacks)
        assert [str(one) for one in wrong] == [], command.where


def test_programs_and_playbooks_of_the_repository_exist() -> None:
    for command in SHOWN:
        for path in re.findall(r"\./(?:demo|test)\b|\b(?:scripts|tests)/[\w/.-]+", command.text):
            assert (ROOT / path).exists(), command
        for playbook in re.findall(r"ftcluster\.cluster\.(\w+)", command.text):
            assert (ROOT / f"playbooks/{playbook}.yml").exists(), command


# packages of a cloud's inventory plugin, and the wheel of a release, whose dependencies pip chooses
UNLOCKED = {
    "~/ftcluster/bin/pip install boto3 google-auth requests",
    "~/ftcluster/bin/pip install ./ftcluster-*.whl",
    "~/ftcluster/bin/pip install --upgrade ./ftcluster-*.whl",
}
LOCKED = {"--require-hashes", "--no-index"}
OWN = {"--no-deps", "--no-build-isolation"}  # otherwise pip downloads the build's requirements


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
