"""Checks of the roles that need no host: documentation, defaults, syntax."""

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from ftcluster_common import RELEASE
from tests.programs import CONTROL, ROOT

ROLES = sorted(path.name for path in (ROOT / "roles").iterdir())
MODULES = sorted(path.stem for path in (ROOT / "plugins/modules").glob("*.py"))
COLLECTION = "ftcluster.cluster"


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text()) if path.exists() else {}


def ansible(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [str(CONTROL / arguments[0]), *arguments[1:]],
        env={**os.environ, "ANSIBLE_NOCOLOR": "true"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("role", ROLES)
def test_variables_are_documented_once_and_have_their_roles_name(role: str) -> None:
    specs = load(ROOT / f"roles/{role}/meta/argument_specs.yml")["argument_specs"]
    options = {name: spec for entry in specs.values() for name, spec in entry["options"].items()}
    defaults = load(ROOT / f"roles/{role}/defaults/main.yml") or {}
    assert all(name.startswith(f"{role}_") for name in [*options, *defaults])
    assert not set(defaults) - set(options), "a default that is not documented"
    for name, spec in options.items():
        assert spec.get("required") or name in defaults, f"{name} has neither default nor need"
        if "default" in spec:
            assert spec["default"] == defaults[name], f"{name}: documentation and default differ"


def test_ansible_doc_knows_the_roles() -> None:
    names = [f"{COLLECTION}.{role}" for role in ROLES]
    done = ansible("ansible-doc", "-t", "role", *names, "--json")
    assert done.returncode == 0, done.stderr
    documented = json.loads(done.stdout)
    assert sorted(documented) == names
    assert all(role["entry_points"]["main"] for role in documented.values())


def test_ansible_doc_knows_the_modules() -> None:
    names = [f"{COLLECTION}.{module}" for module in MODULES]
    done = ansible("ansible-doc", *names, "--json")
    assert done.returncode == 0, done.stderr
    documented = json.loads(done.stdout)
    assert sorted(documented) == names
    assert all(module["doc"]["short_description"] for module in documented.values())


def test_playbooks_can_be_run_by_name() -> None:
    names = [f"{COLLECTION}.{path.stem}" for path in sorted((ROOT / "playbooks").glob("*.yml"))]
    assert f"{COLLECTION}.setup" in names
    done = ansible("ansible-playbook", "--syntax-check", "-i", "localhost,", *names)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("playbook: ") == len(names)


def test_the_node_package_comes_along_as_a_wheel() -> None:
    site = next((ROOT / ".venv/lib").glob("python3*/site-packages"))
    roles = site / "ansible_collections/ftcluster/cluster/roles"
    wheels = list((roles / "node_agent/files").glob("*.whl"))
    (wheel,) = wheels
    assert re.fullmatch(rf"ftcluster_train-{re.escape(RELEASE)}[^-]*-py3-none-any\.whl", wheel.name)
