import json
import re
import shlex
import tomllib
from itertools import pairwise
from pathlib import Path

import pytest

from ftcluster.cli.main import main
from ftcluster.cli.stacks import cautions, install_command
from ftcluster.errors import StacksError, UsageError
from ftcluster.paths import collection
from ftcluster.stacks.catalog import (
    CCL,
    IPEX,
    NODE_PYTHON,
    Stack,
    find_stack,
    load_stacks,
    numbers,
    parse_stacks,
)
from ftcluster.stacks.resolver import AT_MOST, LATEST, PARTS, Answer, Wish, resolve
from tests.programs import ROOT

STACKS = load_stacks()
FILE = ROOT / "roles/torch_stack/files/stacks.yml"
# torch, IPEX, oneccl_bind_pt, the first and the last Python that all three have wheels for
TRIOS = """
1.9.0   1.9.0     1.9.0     3.7  3.7
1.10.0  1.10.0    1.10.0    3.6  3.9
1.11.0  1.11.0    1.11.0    3.7  3.10
1.12.0  1.12.0    1.12.0    3.7  3.10
1.12.1  1.12.100  1.12.100  3.7  3.10
1.13.0  1.13.0    1.13.0    3.7  3.10
1.13.1  1.13.100  1.13.100  3.7  3.10
2.0.0   2.0.0     2.0.0     3.8  3.11
2.0.1   2.0.100   2.0.100   3.8  3.11
2.1.0   2.1.0     2.1.0     3.8  3.11
2.2.0   2.2.0     2.2.0     3.8  3.11
2.3.0   2.3.0     2.3.0     3.8  3.11
2.4.0   2.4.0     2.4.0     3.8  3.11
2.5.0   2.5.0     2.5.0     3.9  3.12
2.6.0   2.6.0     2.6.0     3.9  3.13
2.7.0   2.7.0     2.7.0     3.9  3.13
2.8.0   2.8.0     -         3.9  3.13
2.13.0  -         -         3.11 3.14
""".strip().splitlines()
MINIMAL = """
indexes: {torch: https://example.org}
warnings: {w: {text: t, source: s}}
stacks:
  one:
    summary: s
    state: default
    python: ["3.10", "3.11"]
    packages: {torch: 2.0.0}
    backends: [gloo]
    cpu_flags: []
    warnings: [w]
"""


def ask(**wish: str | bool) -> Answer:
    return resolve(Wish(**wish), STACKS)  # type: ignore[arg-type]


def reasons(answer: Answer) -> str:
    return "\n".join(f"{note.text} ({note.source})" for note in answer.reasons)


# --- the data file


@pytest.mark.parametrize("line", TRIOS)
def test_every_matched_set_is_there_with_its_python(line: str) -> None:
    torch, ipex, ccl, first, last = line.split()
    (stack,) = [s for s in STACKS.values() if s.version("torch") == torch]
    assert stack.version(*IPEX) == ipex.replace("-", "")
    assert stack.version(CCL) == ccl.replace("-", "")
    assert (stack.has_ipex, stack.has_ccl) == (ipex != "-", ccl != "-")
    if stack.state != "documented":
        first = max(first, NODE_PYTHON, key=numbers)
    assert stack.python == (first, last)


def test_there_is_no_other_set_and_exactly_one_default() -> None:
    assert len(STACKS) == len(TRIOS)
    assert [s.name for s in STACKS.values() if s.state == "default"] == ["native"]
    assert next(iter(STACKS)) == "native"  # a list shows it first


def test_the_sets_are_in_order_of_their_torch() -> None:
    versions = [numbers(stack.version("torch")) for stack in STACKS.values()]
    assert all(newer > older for newer, older in pairwise(versions))


@pytest.mark.parametrize("stack", STACKS.values(), ids=list(STACKS))
def test_a_stack_is_well_formed(stack: Stack) -> None:
    assert stack.version("transformers")
    assert stack.version("datasets")
    assert all(re.fullmatch(r"3\.\d+", end) for end in stack.python)
    assert ("ccl" in stack.backends) == stack.has_ccl
    assert set(stack.yanked) <= {IPEX[0]}  # the table marks no other
    assert all(note.text and note.source for note in stack.warnings)
    for note in stack.warnings:
        assert not note.text.endswith(".")
        assert all(stack.version(*PARTS[part][1]) for part in note.explains)
    texts = " ".join(note.text for note in stack.warnings)
    assert ("IPEX is archived" in texts) == stack.has_ipex
    assert ("oneccl_bind_pt is deprecated" in texts) == stack.has_ccl
    assert ("took this release" in texts) == bool(stack.yanked)
    if stack.state != "documented":
        assert not stack.yanked
        assert {"impi-rt", "mpi4py", "accelerate"} <= set(stack.packages)


def test_every_warning_is_some_stacks() -> None:
    used = {note.text for stack in STACKS.values() for note in stack.warnings}
    section = FILE.read_text(encoding="utf-8").split("\nwarnings:\n")[1].split("\nstacks:\n")[0]
    assert set(re.findall(r"    text: (.*)", section)) == used


def test_ipex_from_1_11_to_2_5_is_yanked() -> None:
    yanked = {stack.version(*IPEX) for stack in STACKS.values() if stack.yanked}
    assert yanked == {
        version
        for version in (stack.version(*IPEX) for stack in STACKS.values())
        if version and (1, 11) <= numbers(version) < (2, 6)
    }


def test_the_python_of_the_hosts_is_what_their_package_says() -> None:
    project = tomllib.loads((ROOT / "train/pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["requires-python"] == f">={NODE_PYTHON}"


def test_packages_are_found_by_any_spelling() -> None:
    stack = STACKS["intel-2.7"]
    assert stack.version("Intel-Extension-for-PyTorch") == "2.7.0"
    assert stack.version("nothing", "torch") == "2.7.0"
    assert stack.version("nothing") == ""


def test_the_first_name_of_ipex_counts() -> None:
    assert STACKS["intel-1.9"].has_ipex
    assert "torch_ipex" in STACKS["intel-1.9"].packages


def test_python_is_compared_by_number_and_without_its_patch_release() -> None:
    stack = STACKS["intel-2.8"]
    assert stack.fits_python("3.10")
    assert stack.fits_python("3.13.12")
    assert not stack.fits_python("3.9.20")
    assert not stack.fits_python("3.14")


def test_the_file_is_read_from_where_the_collection_is() -> None:
    assert (collection() / "roles/torch_stack/files/stacks.yml").is_file()
    assert load_stacks(FILE) == STACKS


# --- a damaged file


@pytest.mark.parametrize(
    ("before", "after", "complaint"),
    [
        ("stacks:", "stacks: [", "my.yml:6: not valid YAML"),
        ("summary: s", "summary: \0", "my.yml: not valid YAML"),
        ("warnings: {w", "notes: {w", "has not the sections indexes, warnings, stacks"),
        ("text: t, ", "", "warning 'w': has not a text"),
        ("source: s}", "source: s, explains: 3}", "warning 'w'"),
        ("    summary: s\n", "", "stack 'one': 'summary' is missing"),
        ("state: default", "state: old", "'state' is default, supported or documented, not 'old'"),
        ("torch: 2.0.0", "torch: 2.10", "a version as text for each package"),
        ("torch: 2.0.0", "numpy: 2.0.0", "torch among them"),
        ('["3.10", "3.11"]', "[3.10, 3.11]", "two minor versions in quotes"),
        ('["3.10", "3.11"]', '["3.11", "3.9"]', "the first and the last"),
        ("[gloo]", "[]", "'backends' is a list of at least one name"),
        ("[w]", "[v]", "'v' is not in the section warnings"),
        ("[w]", "[w]\n    yanked: [jax]", "'jax' is yanked, but not one of its packages"),
        ("[w]", "[w]\n    pithon: 3", "unknown key 'pithon'"),
        ("state: default", "state: supported", "one stack is the default, not 0"),
    ],
)
def test_a_damaged_file_is_refused_with_what_is_wrong(
    before: str, after: str, complaint: str
) -> None:
    assert before in MINIMAL
    with pytest.raises(StacksError) as caught:
        parse_stacks(MINIMAL.replace(before, after, 1), "my.yml")
    assert complaint in str(caught.value)
    assert "my.yml" in str(caught.value)


def test_everything_that_is_wrong_is_said_at_once() -> None:
    with pytest.raises(StacksError) as caught:
        parse_stacks(MINIMAL.replace("[gloo]", "3").replace("summary: s", "summary: 4"), "my.yml")
    assert {"'backends'", "'summary'"} <= set(re.findall(r"'\w+'", str(caught.value)))


def test_no_file_is_an_error_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(StacksError) as caught:
        load_stacks(tmp_path / "stacks.yml")
    assert str(tmp_path / "stacks.yml") in str(caught.value)


# --- wishes that can be had: the wish, and all stacks that have it


@pytest.mark.parametrize(
    ("wish", "names"),
    [
        ({"torch": "2.7", "ipex": True, "ccl": True}, ["intel-2.7"]),
        ({"torch": "2.8", "ipex": True}, ["intel-2.8"]),
        ({"torch": "2.8.0+cpu"}, ["intel-2.8"]),
        ({"torch": LATEST}, ["native"]),
        ({"ipex": LATEST}, ["intel-2.8"]),
        ({"ccl": LATEST}, ["intel-2.7"]),
        ({"torch": "1.13"}, ["intel-1.13.1", "intel-1.13"]),
        ({"torch": "1.13.0", "transformers": "4.24.0"}, ["intel-1.13"]),
        ({"ipex": "1.12.100"}, ["intel-1.12.1"]),
        ({"ipex": "1.9"}, ["intel-1.9"]),
        ({"ccl": "2.0"}, ["intel-2.0.1", "intel-2.0"]),
        ({"ipex": False}, ["native"]),
        ({"ipex": True, "ccl": False}, ["intel-2.8"]),
        ({"transformers": "5"}, ["native"]),
        ({"accelerate": "1.12"}, ["intel-2.8", "intel-2.7"]),
        ({"python": "3.14"}, ["native"]),
        ({"python": "3.6.15"}, ["intel-1.10"]),
        ({"python": "3.13", "ccl": True}, ["intel-2.7", "intel-2.6"]),
        ({"stack": "intel-2.7", "python": "3.12"}, ["intel-2.7"]),
        ({"torch": "2.1"}, ["intel-2.1"]),  # and not 2.13
        ({}, list(STACKS)),
    ],
)
def test_what_can_be_had(wish: dict[str, str | bool], names: list[str]) -> None:
    answer = ask(**wish)
    assert [stack.name for stack in answer.exact] == names
    assert answer.possible
    assert not answer.reasons
    assert not answer.nearest


# --- wishes that cannot: the wish, the nearest stack, what it gives up, and a part of the reason


@pytest.mark.parametrize(
    ("wish", "nearest", "missed", "reason"),
    [
        (
            {"torch": "2.8", "ipex": True, "ccl": True},
            "intel-2.8",
            "without oneccl_bind_pt",
            "no oneccl_bind_pt was made for torch 2.8; the last is 2.7.0, for torch 2.7.0",
        ),
        (
            {"torch": "2.8", "ccl": True},
            "intel-2.8",
            "without oneccl_bind_pt",
            "2.7.0 is its last release for CPUs (https://github.com/intel/torch-ccl)",
        ),
        (
            {"torch": "2.13", "ipex": True},
            "native",
            "without IPEX",
            "no IPEX was made for torch 2.13; the last is 2.8.0, for torch 2.8.0",
        ),
        (
            {"torch": LATEST, "ipex": True},
            "native",
            "without IPEX",
            "IPEX is archived since 2026-03-30",
        ),
        (
            {"torch": "2.13", "ipex": "2.8"},
            "intel-2.8",
            "torch 2.8.0 instead of 2.13",
            "no IPEX was made for torch 2.13; IPEX 2.8 is for torch 2.8.0",
        ),
        (
            {"transformers": "5.23", "ccl": True},
            "native",
            "without oneccl_bind_pt",
            "transformers 5.23.0 has no backend ccl any more",
        ),
        (
            {"transformers": "5.23", "ipex": True},
            "native",
            "without IPEX",
            "the last is 2.8.0, in sets with transformers 4.55.4",
        ),
        (
            {"accelerate": "1.15", "ipex": True},
            "native",
            "without IPEX",
            "accelerate dropped IPEX in 2025-12",
        ),
        (
            {"torch": "1.13", "python": "3.12"},
            "intel-2.7",
            "torch 2.7.0 instead of 1.13",
            "the sets with torch 1.13 are for Python 3.7 to 3.10",
        ),
        (
            {"torch": "2.8", "python": "3.9"},
            "intel-2.8",
            "for Python 3.10 to 3.13",
            "ftcluster's own package on the hosts needs Python 3.10",
        ),
        (
            {"ipex": True, "python": "3.14"},
            "native",
            "without IPEX",
            "the sets with IPEX are for Python 3.6 to 3.13",
        ),
        (
            {"python": "3.15"},
            "native",
            "for Python 3.11 to 3.14",
            "no set is for Python 3.15; the newest is 3.14 (native)",
        ),
        (
            {"python": "3.5"},
            "intel-2.8",
            "for Python 3.10 to 3.13",
            "no set is for Python 3.5; the oldest is 3.6 (intel-1.10)",
        ),
        (
            {"torch": "2.9"},
            "native",
            "torch 2.13.0 instead of 2.9",
            "no set with torch 2.9; the nearest are 2.8.0 (intel-2.8) and 2.13.0 (native)",
        ),
        (
            {"torch": "2.5.1", "ipex": True},
            "intel-2.5",
            "torch 2.5.0 instead of 2.5.1",
            "the nearest are 2.5.0 (intel-2.5) and 2.6.0 (intel-2.6)",
        ),
        (
            {"torch": "3"},
            "native",
            "torch 2.13.0 instead of 3",
            "the newest is 2.13.0 (native)",
        ),
        (
            {"torch": "1.8"},
            "intel-2.7",
            "torch 2.7.0 instead of 1.8",
            "the oldest is 1.9.0 (intel-1.9)",
        ),
        (
            {"ipex": "2.9"},
            "intel-2.8",
            "IPEX 2.8.0 instead of 2.9",
            "IPEX is archived since 2026-03-30",
        ),
        (
            {"ccl": "2.8"},
            "intel-2.7",
            "oneccl_bind_pt 2.7.0 instead of 2.8",
            "oneccl_bind_pt is deprecated since 2025-11-05",
        ),
        (
            {"ipex": "2.8", "ccl": True},
            "intel-2.8",
            "without oneccl_bind_pt",
            "the set with IPEX 2.8 (intel-2.8) has no oneccl_bind_pt",
        ),
        (
            {"torch": "1.12.1", "ccl": "1.12.0"},
            "intel-1.12.1",
            "oneccl_bind_pt 1.12.100 instead of 1.12.0",
            "oneccl_bind_pt 1.12.0 is for torch 1.12.0",
        ),
        (
            {"torch": "2.0", "transformers": "4.24"},
            "intel-2.0",
            "transformers 4.28.1 instead of 4.24",
            "the sets with torch 2.0 have transformers 4.28.1 and 4.31.0; "
            "transformers 4.24 is for torch 1.13.0 and 1.13.1",
        ),
        (
            {"torch": "2.7", "ipex": False},
            "intel-2.7",
            "with IPEX 2.7.0",
            "the set with torch 2.7 (intel-2.7) has IPEX 2.7.0",
        ),
        (
            {"ipex": False, "ccl": True},
            "native",
            "without oneccl_bind_pt",
            "the set without IPEX (native) has no oneccl_bind_pt",
        ),
        (
            {"stack": "intel-2.8", "ccl": True},
            "intel-2.8",
            "without oneccl_bind_pt",
            "intel-2.8 has no oneccl_bind_pt; the last is 2.7.0, in intel-2.7",
        ),
        (
            {"stack": "native", "torch": "2.8"},
            "native",
            "torch 2.13.0 instead of 2.8",
            "native has torch 2.13.0; torch 2.8 is in intel-2.8",
        ),
        (
            {"stack": "intel-1.13", "python": "3.12"},
            "intel-2.7",
            "another than intel-1.13",
            "intel-1.13 is for Python 3.7 to 3.10",
        ),
    ],
)
def test_what_cannot_be_had(
    wish: dict[str, str | bool], nearest: str, missed: str, reason: str
) -> None:
    answer = ask(**wish)
    assert not answer.possible
    assert answer.nearest[0].stack.name == nearest
    assert answer.nearest[0].missed == (missed,)
    assert reason in reasons(answer)
    assert len(answer.nearest) <= AT_MOST


def test_each_conflict_has_its_reason() -> None:
    found = reasons(ask(torch="2.13", ipex=True, ccl=True))
    assert "no IPEX was made for torch 2.13" in found
    assert "no oneccl_bind_pt was made for torch 2.13" in found


def test_a_part_that_is_not_in_the_way_is_not_blamed() -> None:
    found = reasons(ask(torch="2.8", ipex=True, ccl=True))
    assert "IPEX is archived" not in found
    found = reasons(ask(ipex="2.4", python="3.13"))
    assert found == "the set with IPEX 2.4 (intel-2.4) is for Python 3.8 to 3.11 ()"


def test_three_that_only_go_together_by_twos() -> None:
    wish = {"transformers": "4.24", "torch": "1.13.1", "ipex": "1.13.100"}
    text = MINIMAL.partition("    warnings: [w]")[0]
    one = text.partition("  one:\n")[2]
    for name, packages in (
        ("two", "torch: 1.13.1, transformers: 4.24.0, torch_ipex: 1.0.0"),
        ("three", "torch: 1.13.1, transformers: 4.0.0, torch_ipex: 1.13.100"),
        ("four", "torch: 1.0.0, transformers: 4.24.0, torch_ipex: 1.13.100"),
    ):
        data = one.replace("torch: 2.0.0", packages).replace("default", "supported")
        text += f"  {name}:\n{data}"
    answer = resolve(Wish(**wish), parse_stacks(text, "my.yml"))
    assert [note.text for note in answer.reasons] == [
        "no set has torch 1.13.1, transformers 4.24 and IPEX 1.13.100 together, "
        "though all but any one of them go together"
    ]
    assert [near.stack.name for near in answer.nearest] == ["two", "three", "four"]


@pytest.mark.parametrize("stack", STACKS.values(), ids=list(STACKS))
def test_what_a_stack_has_can_be_wished_for(stack: Stack) -> None:
    versions = {part: stack.version(*PARTS[part][1]) or False for part in PARTS}
    if not versions["accelerate"]:
        del versions["accelerate"]  # the only one that a wish cannot exclude
    answer = resolve(Wish(**versions, python=stack.python[1]), STACKS)  # type: ignore[arg-type]
    assert answer.exact == (stack,)


def test_an_impossible_wish_always_has_a_reason_and_a_neighbour() -> None:
    versions = ("1.9", "2.0", "2.7", "2.8", "2.9", "2.13")
    for torch in versions:
        for ipex in (None, True, False, *versions):
            for ccl in (None, True, False):
                for python in (None, "3.6", "3.10", "3.14"):
                    wish = Wish(torch=torch, ipex=ipex, ccl=ccl, python=python)
                    answer = resolve(wish, STACKS)
                    assert answer.possible != bool(answer.reasons)
                    assert answer.possible != bool(answer.nearest)
                    assert len(set(answer.reasons)) == len(answer.reasons)
                    counts = [len(near.missed) for near in answer.nearest]
                    assert counts == sorted(counts)
                    assert all(counts)


@pytest.mark.parametrize(
    "wish",
    [
        {"torch": "abc"},
        {"torch": ""},
        {"torch": "2.x"},
        {"torch": "2.8.0+xpu"},
        {"ipex": "2..7"},
        {"transformers": "-1"},
        {"python": "3"},
        {"python": LATEST},
        {"python": "python3.11"},
    ],
)
def test_nonsense_is_no_version(wish: dict[str, str]) -> None:
    with pytest.raises(UsageError) as caught:
        ask(**wish)
    assert repr(next(iter(wish.values()))) in str(caught.value)


def test_an_unknown_stack_suggests_the_nearest() -> None:
    with pytest.raises(UsageError) as caught:
        find_stack("intel2.8", STACKS)
    assert "did you mean intel-2.8?" in str(caught.value)
    with pytest.raises(UsageError):
        ask(stack="intel-2.9", ipex=True)


# --- the command


def stacks(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> tuple[str, str]:
    assert main(["stacks", *arguments]) == code
    captured = capsys.readouterr()
    return captured.out, captured.err


def test_without_a_wish_all_are_listed_in_columns(capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = stacks(capsys)
    lines = out.splitlines()
    assert [line.split()[0] for line in lines[1 : len(STACKS) + 1]] == list(STACKS)
    column = lines[0].index("Python")
    assert all(re.match(r"3\.\d+", line[column:]) for line in lines[1 : len(STACKS) + 1])


def test_one_stack_with_its_warnings_and_how_to_install_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    out, _ = stacks(capsys, "intel-2.7")
    assert "ftcluster setup --stack intel-2.7 --allow-unverified\n" in out
    assert "there is no hash of oneccl_bind_pt 2.7.0: setup wants --allow-unverified" in out
    for note in STACKS["intel-2.7"].warnings:
        assert f"{note.text} ({note.source})" in out


@pytest.mark.parametrize("stack", STACKS.values(), ids=list(STACKS))
def test_a_yanked_release_is_installed_on_an_explicit_word_only(stack: Stack) -> None:
    command, told = install_command(stack), " ".join(cautions(stack))
    if stack.host_python:
        assert ("--allow-yanked" in command) == ("--allow-yanked" in told) == bool(stack.yanked)
    else:
        assert not command
        assert "ftcluster cannot install it" in told


def test_old_sets_that_no_host_can_have_say_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert {s.name for s in STACKS.values() if not s.host_python} == {"intel-1.9", "intel-1.10"}
    out, _ = stacks(capsys, "--torch", "1.10")
    assert "ftcluster cannot install it: its own package on the hosts needs Python 3.10" in out
    assert "setup --stack" not in out


def test_a_wish_that_can_be_had_is_0(capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = stacks(capsys, "--torch", "2.4", "--ipex", "--ccl")
    assert out.startswith("torch 2.4, IPEX and oneccl_bind_pt: yes\n")
    assert "ftcluster setup --stack intel-2.4 --allow-yanked --allow-unverified" in out


def test_a_wish_that_cannot_be_had_is_1_with_the_answer_on_stdout(
    capsys: pytest.CaptureFixture[str],
) -> None:
    out, err = stacks(capsys, "--torch", "2.8", "--ipex", "--ccl", code=1)
    assert "no oneccl_bind_pt was made for torch 2.8" in out
    assert "ftcluster setup --stack intel-2.8" in out
    assert err == ""


@pytest.mark.parametrize(
    "arguments",
    [
        ["intel2.8"],
        ["intel2.8", "--ipex"],
        ["native", "intel-2.8"],
        ["--torch", "abc"],
        ["--ipex", "abc"],
        ["--python", "three"],
    ],
)
def test_wrong_usage_is_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    out, err = stacks(capsys, *arguments, code=2)
    assert out == ""
    assert err.startswith("error: ")


def test_a_name_may_come_after_the_options(capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = stacks(capsys, "--python", "3.12", "intel-2.7")
    assert out.startswith("stack intel-2.7 and Python 3.12: yes")


def test_none_is_a_set_without_it(capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = stacks(capsys, "--ipex", "none", "--json")
    document = json.loads(out)
    assert document["wish"] == {"ipex": False}
    assert [stack["name"] for stack in document["stacks"]] == ["native"]


def test_json_of_all_and_of_one(capsys: pytest.CaptureFixture[str]) -> None:
    everything = json.loads(stacks(capsys, "--json")[0])["stacks"]
    assert [stack["name"] for stack in everything] == list(STACKS)
    one = json.loads(stacks(capsys, "intel-2.5", "--json")[0])
    assert one in everything
    assert one["packages"] == STACKS["intel-2.5"].packages
    assert one["install"] == "ftcluster setup --stack intel-2.5 --allow-yanked --allow-unverified"
    assert all(warning["source"] for warning in one["warnings"])


def test_json_of_an_answer(capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(stacks(capsys, "--torch", "2.13", "--ipex", "--json", code=1)[0])
    assert document["possible"] is False
    assert document["wish"] == {"torch": "2.13", "ipex": True}
    assert document["stacks"] == []
    assert document["nearest"][0]["name"] == "native"
    assert document["nearest"][0]["missed"] == ["without IPEX"]
    assert {"text", "source"} == set(document["reasons"][0])


def test_json_of_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = stacks(capsys, "nativ", "--json", code=2)
    assert "did you mean native?" in json.loads(out)["hint"]


def test_the_page_shows_what_the_commands_print(capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs/stacks.md").read_text(encoding="utf-8")
    blocks = re.findall(r"(?m)^    \$ ftcluster stacks(.*)\n((?:    .*\n|\n(?=    ))*)", page)
    assert blocks
    for arguments, shown in blocks:
        main(["stacks", *shlex.split(arguments)])
        printed = capsys.readouterr().out
        assert re.sub(r"(?m)^    ", "", shown) == printed
