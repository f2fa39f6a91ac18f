"""Known vulnerabilities of the stacks' versions."""

import datetime
import re
from pathlib import Path

import pytest
import yaml
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.advisories import (
    advisories_of,
    advisory_notice,
)
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.lock import read_lock
from packaging.specifiers import SpecifierSet

from tests.programs import ROOT
from tests.unit.clusters import STACKS
from tests.unit.shell import Shell

FILES = ROOT / "roles/torch_stack/files"
KNOWN = yaml.safe_load((FILES / "advisories.yml").read_text())
OF_2026 = {"CVE-2026-24747", "CVE-2026-9856", "CVE-2026-5241"}
OLDER = {"CVE-2025-32434", "CVE-2023-6730", "CVE-2022-45907"}
# the advisories of each stack, from public lists by versions of torch and transformers
EXPECTED = {
    "native-2.14": set(),
    "native": set(),
    "native-trackers": set(),
    "intel-2.8": OF_2026,
    "intel-2.7": OF_2026,
    "intel-2.6": OF_2026,
    "intel-2.5": OF_2026 | {"CVE-2025-32434"},
    "intel-2.1": OF_2026 | {"CVE-2025-32434", "CVE-2023-6730"},
    "intel-1.13": OF_2026 | OLDER,
}


def test_the_list_is_dated_and_each_entry_is_complete() -> None:
    assert datetime.date.fromisoformat(KNOWN["looked_at"]) >= datetime.date(2026, 11, 26)
    for name, one in KNOWN["advisories"].items():
        assert re.fullmatch(r"CVE-\d{4}-\d{4,}", name)
        assert one.keys() == {"package", "affected", "allows", "source"}
        assert one["source"].endswith(name)
        assert SpecifierSet(one["affected"])
        assert all(one["package"] in stack.packages for stack in STACKS.values())


@pytest.mark.parametrize("name", EXPECTED)
def test_each_stack_says_what_its_versions_have(name: str) -> None:
    assert {one.id for one in STACKS[name].advisories} == EXPECTED[name]


@pytest.mark.parametrize("lock", sorted(FILES.glob("*.txt")), ids=lambda path: path.stem)
def test_the_locked_versions_have_no_others(lock: Path) -> None:
    stack = STACKS[lock.stem.removesuffix("-cuda")]
    locked = {pin.name: pin.version for pin in read_lock(lock.read_text(), "3.11").values()}
    found = {one["id"] for one in advisories_of(locked, KNOWN["advisories"])}
    assert found <= {one.id for one in stack.advisories}
    if not lock.stem.endswith("-cuda"):
        assert found == {one.id for one in stack.advisories}


@pytest.mark.parametrize(
    ("version", "affected"),
    [("2.9.1", True), ("2.9.1+cpu", True), ("2.10.0", False), ("2.10.0rc1", False)],
)
def test_versions_compare_as_versions(version: str, affected: bool) -> None:
    known = {"CVE-2026-24747": KNOWN["advisories"]["CVE-2026-24747"]}
    assert bool(advisories_of({"torch": version}, known)) == affected


def test_one_notice_names_all() -> None:
    packages = STACKS["intel-2.8"].packages
    notice = advisory_notice(
        "intel-2.8", advisories_of(packages, KNOWN["advisories"]), "2026-11-26"
    )
    assert "\n" not in notice
    assert all(name in notice for name in (*OF_2026, "2026-11-26", "torch 2.8.0"))
    assert advisory_notice("native", [], "2026-11-26") == ""


def test_stacks_shows_them(shell: Shell) -> None:
    shown = shell("stacks intel-2.8").out
    assert all(name in shown for name in OF_2026)
    assert KNOWN["looked_at"] in shown
