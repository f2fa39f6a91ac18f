"""The file of the stacks: its sets match, and it has the form that its readers expect."""

import re
import tomllib
from itertools import pairwise
from pathlib import Path

import pytest

from ftcluster.errors import StacksError, UsageError
from ftcluster.stacks.catalog import CCL, IPEX, NODE_PYTHON, Stack, find_stack, load_stacks, numbers
from ftcluster.stacks.resolver import PACKAGES
from tests.programs import ROOT
from tests.unit.clusters import STACKS

FILE = ROOT / "roles/torch_stack/files/stacks.yml"
# torch, IPEX, oneccl_bind_pt, and the first and last Python that all three have wheels for
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
2.14.1  -         -         3.11 3.14
2.15.0  -         -         3.11 3.14
""".strip().splitlines()


def test_the_file_has_the_default_and_then_the_matched_sets_newest_first() -> None:
    found = []
    default, *others = (stack for stack in STACKS.values() if not stack.version("trackio"))
    plain = sorted([*others, default], key=lambda one: numbers(one.version("torch")), reverse=True)
    assert others == [stack for stack in plain if stack != default]
    for stack in reversed(plain):
        trio = [stack.version(*packages) or "-" for packages in (("torch",), IPEX, (CCL,))]
        found.append([*trio, *stack.python])
    expected = [line.split() for line in TRIOS]
    for trio, stack in zip(expected, reversed(plain), strict=True):
        # ftcluster installs such stacks together with its own package
        if stack.state != "documented":
            trio[3] = max(trio[3], NODE_PYTHON, key=numbers)
    assert found == expected
    assert all(numbers(a[0]) < numbers(b[0]) for a, b in pairwise(expected))
    assert [s.name for s in STACKS.values() if s.state == "default"] == ["native"]


def test_the_stack_with_trackers_is_native_and_more() -> None:
    native, more = STACKS["native"], STACKS["native-trackers"]
    assert native.packages.items() < more.packages.items()
    locks = (
        FILE.with_name(f"{one.name}.txt").read_text().replace("\\\n", "").splitlines()[2:]
        for one in (native, more)
    )
    of_native, of_more = map(set, locks)
    assert of_native < of_more


@pytest.mark.parametrize("stack", STACKS.values(), ids=list(STACKS))
def test_a_stack_is_well_formed(stack: Stack) -> None:
    texts = [stack.name, stack.summary, *stack.backends, *stack.cpu_flags, stack.tried]
    assert all(isinstance(text, str) for text in texts)
    assert stack.state in ("default", "supported", "documented")
    # YAML reads 2.10 without quotes as the number 2.1
    assert all(re.fullmatch(r"\d+(\.\d+)+", version) for version in stack.packages.values())
    assert all(re.fullmatch(r"3\.\d+", end) for end in stack.python)
    assert len(stack.python) == 2
    assert stack.version("transformers")
    assert stack.version("datasets")
    assert ("ccl" in stack.backends) == stack.has_ccl
    assert {*stack.yanked, *stack.unverified} <= set(stack.packages)
    if stack.state != "documented":
        assert not stack.yanked
        assert {"impi-rt", "mpi4py", "accelerate"} <= set(stack.packages)


@pytest.mark.parametrize("stack", STACKS.values(), ids=list(STACKS))
def test_its_warnings_are_about_what_it_has(stack: Stack) -> None:
    assert all(note.text and note.source and note.text[-1] != "." for note in stack.warnings)
    assert all(stack.version(*PACKAGES[p]) for note in stack.warnings for p in note.explains)
    assert (("ipex",) in {note.explains for note in stack.warnings}) == stack.has_ipex
    assert (("ccl",) in {note.explains for note in stack.warnings}) == stack.has_ccl
    ipex = stack.version(*IPEX)
    assert bool(stack.yanked) == bool(ipex and (1, 11) <= numbers(ipex) < (2, 6))


def test_every_warning_is_used() -> None:
    used = {note.text for stack in STACKS.values() for note in stack.warnings}
    section = FILE.read_text(encoding="utf-8").split("\nwarnings:\n")[1].split("\nstacks:\n")[0]
    assert set(re.findall(r"    text: (.*)", section)) == used


def test_the_oldest_python_of_the_hosts_is_that_of_their_package() -> None:
    project = tomllib.loads((ROOT / "train/pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["requires-python"] == f">={NODE_PYTHON}"


def test_packages_are_found_by_any_spelling() -> None:
    stack = STACKS["intel-2.7"]
    assert stack.version("Intel-Extension-for-PyTorch") == "2.7.0"
    assert stack.version("nothing", "torch") == "2.7.0"
    assert stack.version("nothing") == ""
    assert STACKS["intel-1.9"].has_ipex  # by its previous name
    # Python versions are compared as numbers, without the patch release
    fitting = ["3.9.20", "3.10", "3.13.12", "3.14"]
    assert [STACKS["intel-2.8"].fits_python(v) for v in fitting] == [False, True, True, False]


@pytest.mark.parametrize(
    ("before", "after"),
    [("stacks:", "stacks: ["), ("\nindexes:", "\nindices:"), ("[ipex_archived", "[nothing"),
     ("stacks:\n", "stacks: 3\nrest:\n"), ("state: default", "status: default")],
)  # fmt: skip
def test_a_damaged_file_is_named(tmp_path: Path, before: str, after: str) -> None:
    path = tmp_path / "stacks.yml"
    path.write_text(FILE.read_text().replace(before, after))
    with pytest.raises(StacksError, match=re.escape(str(path))):
        load_stacks(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(StacksError, match=re.escape(str(tmp_path / "none.yml"))):
        load_stacks(tmp_path / "none.yml")


def test_an_unknown_stack_suggests_the_nearest() -> None:
    with pytest.raises(UsageError) as caught:
        find_stack("intel2.8", STACKS)
    assert "intel-2.8?" in caught.value.hint
