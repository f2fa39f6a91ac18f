"""Variables that a site has for itself cannot change what the playbooks do."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.programs import ROOT

PAGE = (ROOT / "docs/ops.md").read_text(encoding="utf-8")
# roles' variables that the page gives to the users of the playbooks
DOCUMENTED = set(re.findall(r"^\| `((?!ftcluster_)\w+)` \|", PAGE, re.MULTILINE))
PLAY = yaml.safe_load((ROOT / "playbooks/vars/cluster.yml").read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Use:
    """One place that runs a role of ours.

    Attributes:
        role: its short name.
    """

    role: str
    entry: str
    given: frozenset[str]


def uses(tasks: Any, given: frozenset[str]) -> Iterator[Use]:
    """The roles that tasks run, those in blocks too."""
    for task in tasks or []:
        has = given | set(task.get("vars", {}))
        for key in ("tasks", "block", "rescue", "always"):
            yield from uses(task.get(key), has)
        for action in ("import_role", "include_role"):
            role = task.get(f"ansible.builtin.{action}")
            if role:
                entry = role.get("tasks_from", "main").removesuffix(".yml")
                yield Use(role["name"].removeprefix("ftcluster.cluster."), entry, has)


def uses_in(file: Path) -> list[Use]:
    """The roles that a playbook or a role's tasks run."""
    given = frozenset(PLAY if "playbooks" in file.parts else ())
    return list(uses(yaml.safe_load(file.read_text(encoding="utf-8")), given))


def options_of(use: Use) -> dict[str, Any]:
    """The public variables of a role's entry point."""
    path = ROOT / f"roles/{use.role}/meta/argument_specs.yml"
    specs = yaml.safe_load(path.read_text(encoding="utf-8"))["argument_specs"]
    options: dict[str, Any] = specs.get(use.entry, specs["main"])["options"]
    return options


FILES = [
    file
    for file in [*ROOT.glob("playbooks/**/*.yml"), *ROOT.glob("roles/*/tasks/*.yml")]
    if file.parent.name != "vars" and uses_in(file)
]


@pytest.mark.parametrize("file", FILES, ids=[str(file.relative_to(ROOT)) for file in FILES])
def test_roles_are_given_all_their_variables(file: Path) -> None:
    for use in uses_in(file):
        left = options_of(use).keys() - use.given - DOCUMENTED
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
    options = {name for file in FILES for use in uses_in(file) for name in options_of(use)}
    assert DOCUMENTED
    assert not DOCUMENTED - options


def test_the_variables_that_the_playbooks_validate_are_the_documented_ones() -> None:
    given = re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)
    first = yaml.safe_load((ROOT / "playbooks/tasks/look.yml").read_text(encoding="utf-8"))[0]
    validated = first["ansible.builtin.validate_argument_spec"]["argument_spec"]
    assert sorted(validated) == sorted(given)
    for role in ("torch_stack", "node_agent"):
        for name, spec in options_of(Use(role, "main", frozenset())).items():
            if name in DOCUMENTED:
                kinds = {key: spec[key] for key in ("type", "elements") if key in spec}
                assert validated[name] == kinds, name
