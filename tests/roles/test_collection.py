"""The collection as ansible-galaxy builds and installs it, without the rest of the repository."""

import json
import os
import shutil
import subprocess
import tarfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.programs import CONTROL, ROOT

TOP = {"CHANGELOG.md", "CONTRIBUTING.md", "FILES.json", "LICENSE", "MANIFEST.json", "README.md",
       "docs", "meta", "playbooks", "plugins", "roles"}  # fmt: skip


@dataclass(frozen=True)
class Installed:
    """The collection in a folder of its own, and what its tarball has."""

    collections: Path
    names: list[str]

    def run(self, *arguments: str) -> str:
        return run(self.collections, *arguments)


def run(collections: Path, *arguments: str) -> str:
    """The stdout of a program of Ansible that finds collections in this folder only."""
    environment = {
        **os.environ,
        "ANSIBLE_NOCOLOR": "true",
        "ANSIBLE_COLLECTIONS_PATH": str(collections),
        "ANSIBLE_COLLECTIONS_SCAN_SYS_PATH": "false",  # it would find the one that pip installed
    }
    done = subprocess.run(
        [str(CONTROL / arguments[0]), *arguments[1:]],
        env=environment,
        cwd=collections,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def export(folder: Path) -> None:
    """Copy what git has or would add, as a clone has it."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():  # one that was removed may still be listed
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    folder = tmp_path_factory.mktemp("collection")
    clone, collections = folder / "clone", folder / "collections"
    for made in (clone, collections):
        made.mkdir()
    export(clone)
    (clone / ".git").mkdir()
    (clone / ".git/config").touch()
    galaxy = ("ansible-galaxy", "collection")
    run(collections, *galaxy, "build", str(clone), "--output-path", str(folder))
    tarball = next(folder.glob("*.tar.gz"))
    assert tarball.name == "ftcluster-cluster-0.1.0.tar.gz"
    run(collections, *galaxy, "install", "--offline", "-p", str(collections), str(tarball))
    with tarfile.open(tarball) as tar:
        return Installed(collections, tar.getnames())


def test_the_tarball_has_what_ansible_needs_and_nothing_else(installed: Installed) -> None:
    assert {name.split("/")[0] for name in installed.names} == TOP
    assert "docs/ops.md" in installed.names
    assert not [name for name in installed.names if name.endswith((".whl", ".pyc", ".tar.gz"))]


def test_every_role_is_documented(installed: Installed) -> None:
    listed = json.loads(
        installed.run("ansible-doc", "-t", "role", "-l", "ftcluster.cluster", "--json")
    )
    roles = {f"ftcluster.cluster.{path.name}" for path in (ROOT / "roles").iterdir()}
    assert set(listed) == roles


def test_setup_can_be_run_by_name(installed: Installed) -> None:
    shown = installed.run(
        "ansible-playbook", "--syntax-check", "-i", "localhost,", "ftcluster.cluster.setup"
    )
    assert str(installed.collections) in shown, "another copy of the collection was found"


def test_the_wheel_that_is_missing_is_told_of(installed: Installed) -> None:
    playbook = installed.collections / "agent.yml"
    playbook.write_text(
        "- hosts: localhost\n  connection: local\n  gather_facts: false\n  roles:\n"
        "    - {role: ftcluster.cluster.node_agent, vars: {node_agent_virtualenv: /nowhere}}\n"
    )
    with pytest.raises(AssertionError, match="does not carry the node package"):
        installed.run("ansible-playbook", "-i", "localhost,", str(playbook))
