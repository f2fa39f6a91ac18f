"""The roles name packages and folders of systems on which no test runs them."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.module_utils.facts.system.distribution import Distribution
from ansible_collections.ftcluster.cluster.plugins.modules.host_facts import LIBRARY_FOLDERS
from jinja2 import Environment

from ftcluster.stacks.catalog import load_stacks
from tests.programs import ROOT

PUBLISHED = yaml.safe_load((Path(__file__).with_name("systems.yml")).read_text(encoding="utf-8"))
SYSTEMS = [
    pytest.param(system, name, id=f"{name} {system['major']}")
    for system in PUBLISHED["systems"]
    for name in system["distributions"]
]


def load(path: str) -> Any:
    return yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))


def tcmalloc_package(name: str, major: str) -> str:
    """Return the role's choice for the family that Ansible assigns to a distribution."""
    variables = load("roles/tcmalloc/vars/main.yml")
    facts = {
        "distribution": name,
        "distribution_major_version": major,
        "os_family": Distribution.OS_FAMILY[name],
    }
    environment = Environment()
    system = environment.from_string(variables["tcmalloc__system"]).render(ansible_facts=facts)
    return (
        environment.from_string(variables["tcmalloc__package"])
        .render(variables | {"ansible_facts": facts, "tcmalloc__system": system})
        .strip()
    )


@pytest.mark.parametrize(("system", "name"), SYSTEMS)
def test_packages_are_those_of_the_system(system: dict[str, Any], name: str) -> None:
    assert tcmalloc_package(name, system["major"]) in system["packages"]
    [firewall] = load("roles/firewall/tasks/install.yml")[0]["block"][0]["vars"]["os_package_names"]
    assert firewall in system["packages"]
    for library in map(Path, system["libraries"]):
        assert str(library.parent) in LIBRARY_FOLDERS


@pytest.mark.parametrize(("system", "name"), SYSTEMS)
def test_there_is_a_python_for_the_default_stack(system: dict[str, Any], name: str) -> None:
    [default] = [stack for stack in load_stacks().values() if stack.state == "default"]
    if not default.fits_python(system["pythons"]["python3"]):
        play = load("playbooks/python.yml")[1]
        [package] = play["tasks"][1]["vars"]["os_package_names"]
        assert default.fits_python(system["pythons"][package]), name


def test_selinux_gives_the_files_the_types_that_they_need() -> None:
    home = load("playbooks/vars/cluster.yml")["cluster_home"]
    rules = load("roles/firewall/vars/main.yml")["firewall__file"]
    assert selinux_type(f"{home}/.ssh/authorized_keys") == "ssh_home_t"
    assert selinux_type(rules) == "etc_t"
    assert selinux_type("/usr/bin/python3.11") == "bin_t"


def selinux_type(path: str) -> str:
    fitting = [kind for form, kind in PUBLISHED["policy"]["contexts"] if re.fullmatch(form, path)]
    return str(fitting[-1])


def test_the_page_has_the_days_and_the_names() -> None:
    page = (ROOT / "docs/try.md").read_text(encoding="utf-8")
    for day in (PUBLISHED["read"], PUBLISHED["policy"]["read"]):
        assert str(day) in page
    [row] = [line for line in page.splitlines() if line.startswith("| SELinux |")]
    assert row == f"| SELinux | {' | '.join(one['selinux'] for one in PUBLISHED['systems'])} |"
    for system in PUBLISHED["systems"]:
        for name in {*system["packages"], *system["pythons"]} - {"python3"}:
            assert name in page or name.startswith("python3.1"), name
