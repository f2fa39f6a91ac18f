"""A site's own variables cannot change what the playbooks do."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.ops_page import RoleUse, options_of, uses
from tests.programs import ROOT

PAGE = (ROOT / "docs/variables.md").read_text(encoding="utf-8")
# roles' variables that the page offers to users of the playbooks
DOCUMENTED = set(re.findall(r"^\| `((?!ftcluster_)\w+)` \|", PAGE, re.MULTILINE))
PLAY = yaml.safe_load((ROOT / "playbooks/vars/cluster.yml").read_text(encoding="utf-8"))


def uses_in(file: Path) -> list[RoleUse]:
    """Return the roles that a playbook or a role's tasks run."""
    given = PLAY if "playbooks" in file.parts else {}
    return list(uses(yaml.safe_load(file.read_text(encoding="utf-8")), given))


def public(use: RoleUse) -> dict[str, Any]:
    """Return the public variables of a role's entry point."""
    options = options_of(use.role)
    return options.get(use.entry, options["main"])


FILES = [
    file
    for file in [*ROOT.glob("playbooks/**/*.yml"), *ROOT.glob("roles/*/tasks/*.yml")]
    if file.parent.name != "vars" and uses_in(file)
]


@pytest.mark.parametrize("file", FILES, ids=[str(file.relative_to(ROOT)) for file in FILES])
def test_roles_are_given_all_their_variables(file: Path) -> None:
    for use in uses_in(file):
        left = public(use).keys() - use.variables.keys() - DOCUMENTED
        assert not left, f"{use.role}, {use.entry}: an inventory can set {sorted(left)}"


def test_all_playbooks_with_roles_are_looked_at() -> None:
    assert {file.stem for file in FILES} >= {
        "preflight",
        "system",
        "stack",
        "mesh",
        "verify",
        "teardown",
    }
    assert {use.role for file in FILES for use in uses_in(file)} >= {"firewall", "os_package"}


def test_the_documented_variables_are_the_roles() -> None:
    options = {name for file in FILES for use in uses_in(file) for name in public(use)}
    assert DOCUMENTED
    assert not DOCUMENTED - options


def test_the_variables_that_the_playbooks_validate_are_the_documented_ones() -> None:
    given = re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)
    first = yaml.safe_load((ROOT / "playbooks/tasks/facts.yml").read_text(encoding="utf-8"))[0]
    validated = first["ansible.builtin.validate_argument_spec"]["argument_spec"]
    assert sorted(validated) == sorted(given)
    for role in ("torch_stack", "node_agent"):
        for name, spec in options_of(role)["main"].items():
            if name in DOCUMENTED:
                kinds = {key: spec[key] for key in ("type", "elements") if key in spec}
                assert validated[name] == kinds, name


def test_no_program_is_written_in_jinja() -> None:
    """Loops and branches of statements belong into a filter, which mypy and unit tests check."""
    files = [*ROOT.glob("playbooks/**/*.yml"), *ROOT.glob("roles/*/[dtv]*/*.yml")]
    assert len(files) > 80
    assert not [file for file in files if "{%" in file.read_text(encoding="utf-8")]
