"""The command `stacks`."""

import re
import shlex
from typing import Any

import pytest

from ftcluster.cli.main import main
from ftcluster.operations.setup.stacks import cautions, install_command
from ftcluster.stacks.catalog import Stack
from tests.programs import ROOT
from tests.unit.clusters import STACKS
from tests.unit.shell import Shell


def document(shell: Shell, *arguments: str, code: int = 0) -> Any:
    return shell(["stacks", "--json", *arguments], code).document


def test_json_of_all_stacks_and_of_one(shell: Shell) -> None:
    everything = document(shell)["stacks"]
    assert [stack["name"] for stack in everything] == list(STACKS)
    one = document(shell, "intel-2.5")
    assert one in everything
    assert set(one) == {
        "name", "summary", "state", "python", "packages", "backends", "cpu_flags", "yanked",
        "unverified", "tried", "indexes", "warnings", "cautions", "install", "advisories",
    }  # fmt: skip
    assert one["packages"] == STACKS["intel-2.5"].packages
    assert one["install"] == "ftcluster setup --stack intel-2.5 --allow-yanked --allow-unverified"
    assert all(set(warning) == {"text", "source"} for warning in one["warnings"])


def test_json_of_stacks_that_meet_requirements(shell: Shell) -> None:
    found = document(shell, "--ipex", "none")
    assert found["wish"] == {"ipex": False}
    assert found["possible"] is True
    assert [stack["name"] for stack in found["stacks"]] == [
        "native", "native-trackers", "native-2.15", "native-2.14",
    ]  # fmt: skip
    assert (found["nearest"], found["reasons"]) == ([], [])
    # no stack meets the requirements
    found = document(shell, "--torch", "2.13", "--ipex", code=1)
    assert (found["possible"], found["stacks"]) == (False, [])
    assert found["wish"] == {"torch": "2.13", "ipex": True}
    assert found["nearest"][0]["name"] == "native"
    assert found["nearest"][0]["missed"] == ["no IPEX"]
    assert set(found["reasons"][0]) == {"text", "source"}
    # a name may come after the options
    wish = document(shell, "--python", "3.12", "intel-2.7")["wish"]
    assert wish == {"stack": "intel-2.7", "python": "3.12"}


def test_wrong_usage_is_2(shell: Shell) -> None:
    for words in ("intel2.8", "intel2.8 --ipex", "native intel-2.8", "--torch abc"):
        assert document(shell, *words.split(), code=2)["error"]


@pytest.mark.parametrize("stack", STACKS.values(), ids=list(STACKS))
def test_options_that_a_stack_needs_are_in_its_command_and_its_cautions(stack: Stack) -> None:
    command, said = install_command(stack), " ".join(cautions(stack))
    assert bool(command) == bool(stack.host_python) == (stack.name not in OLD)
    if command:
        assert ("--allow-yanked" in command) == ("--allow-yanked" in said) == bool(stack.yanked)
        assert ("--allow-unverified" in command) == bool(stack.missing_hashes)


OLD = ("intel-1.9", "intel-1.10")  # these need Pythons that the hosts' package does not support


def test_one_stack_with_its_warnings(shell: Shell) -> None:
    out = shell("stacks intel-2.7").out
    assert "ftcluster setup --stack intel-2.7 --allow-unverified\n" in out
    for note in STACKS["intel-2.7"].warnings:
        assert f"{note.text} ({note.source})" in out


def test_the_page_shows_what_the_commands_print(capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs/stacks.md").read_text(encoding="utf-8")
    blocks = re.findall(r"(?m)^    \$ ftcluster stacks(.*)\n((?:    .*\n|\n(?=    ))*)", page)
    assert blocks
    for arguments, shown in blocks:
        main(["stacks", *shlex.split(arguments)])
        parts = re.sub(r"(?m)^    ", "", shown).split("...\n")  # for lines that the page omits
        omitted = r"(?:.*\n)*"
        assert re.fullmatch(omitted.join(map(re.escape, parts)), capsys.readouterr().out)
