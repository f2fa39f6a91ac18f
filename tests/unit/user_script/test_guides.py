"""The hints of `run` for the commands of the guides, followed exactly."""

import shlex
import shutil
from pathlib import Path

import pytest

from ftcluster.errors import UsageError
from ftcluster.user_script.command import read_words
from ftcluster.user_script.compatibility import incompatibilities
from ftcluster.user_script.source import read_source
from tests.guides import GUIDES, MANY_CPUS, STAND_IN, Guide, script_folder
from tests.programs import ROOT
from tests.unit.clusters import STACKS
from tests.unit.commands import commands

MOST_ANSWERS = 5
COMMAND = "ftcluster run -- "


def copied(guide: Guide, folder: Path) -> Path:
    """Copy the script as a reader has it: transformers' own, or a script with its command line."""
    source = script_folder(guide.script)
    if source:
        shutil.copytree(source, folder, dirs_exist_ok=True)
    else:
        shutil.copy(STAND_IN, folder / guide.script)
    return folder / guide.script


def followed(words: list[str], where: Path) -> list[str]:
    """Return the words after following one hint; the same words if there was no hint."""
    try:
        script = read_words(words, False, where.parent)
    except UsageError as answer:
        return shlex.split(answer.hint.removeprefix(COMMAND))
    source = read_source(where, where.parent)
    for one in incompatibilities(source, script.arguments, STACKS["native"], STACKS, brings=True):
        flag = one.what.partition(":")[0]
        assert flag.startswith("--"), one
        at = words.index(flag)
        advice = one.hint.partition(":")[0].split(",")[0]
        if advice == "remove it":
            end = at + 1
            while end < len(words) and not words[end].startswith("--"):
                end += 1
            words = [*words[:at], *words[end:]]
        else:
            verb, name = advice.split()
            assert verb == "write", one
            words = [*words[:at], f"--{name}", *words[at + 1 :]]
    return words


def test_the_page_has_what_the_answers_lead_to() -> None:
    shown = [one for one in commands(ROOT / "docs/migrate.md", ROOT) if one.words[1] == "run"]
    [own] = [one.text.partition(" -- ")[2] for one in shown if not one.inline]
    assert own == GUIDES[MANY_CPUS].advised.replace("/tmp/debug_squad/", "out")


@pytest.mark.parametrize("name", GUIDES)
def test_the_answers_lead_to_a_command_that_is_taken(name: str, tmp_path: Path) -> None:
    """tests/engine/test_guides.py shows that these commands train."""
    guide = GUIDES[name]
    where = copied(guide, tmp_path)
    words = shlex.split(guide.typed)
    for _ in range(MOST_ANSWERS):
        before, words = words, followed(words, where)
        if words == before:
            break
    assert shlex.join(words) == guide.advised
