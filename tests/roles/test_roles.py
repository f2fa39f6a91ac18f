"""The roles without any host: documentation, defaults, syntax."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.programs import CONTROL, ROOT

ROLES = sorted(path.name for path in (ROOT / "roles").iterdir())
MODULES = sorted(path.stem for path in (ROOT / "plugins/modules").glob("*.py"))
STAGES = ("preflight", "system", "stack", "mesh", "verify")


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


@pytest.mark.parametrize("role", ROLES)
def test_ansible_doc_knows_the_role(role: str) -> None:
    done = ansible("ansible-doc", "-t", "role", f"ftcluster.cluster.{role}", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)[f"ftcluster.cluster.{role}"]["entry_points"]["main"]


@pytest.mark.parametrize("module", MODULES)
def test_ansible_doc_knows_the_modules(module: str) -> None:
    done = ansible("ansible-doc", f"ftcluster.cluster.{module}", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)


@pytest.mark.parametrize("playbook", ["setup", *STAGES, "rollback", "teardown"])
def test_playbooks_can_be_run_by_name(playbook: str) -> None:
    done = ansible(
        "ansible-playbook", "--syntax-check", "-i", "localhost,", f"ftcluster.cluster.{playbook}"
    )
    assert done.returncode == 0, done.stderr


def test_the_node_package_comes_along_as_a_wheel() -> None:
    site = next((ROOT / ".venv/lib").glob("python3*/site-packages"))
    roles = site / "ansible_collections/ftcluster/cluster/roles"
    wheels = list((roles / "node_agent/files").glob("*.whl"))
    assert [wheel.name for wheel in wheels] == ["ftcluster_train-0.1.0-py3-none-any.whl"]
